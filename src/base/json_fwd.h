#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace quire {

using Json = nlohmann::json;  // sorted keys: quick to look up, for files
using OrderedJson =
    nlohmann::ordered_json;  // keys as they came, for what reaches a chat template; look-up is linear

// nlohmann::json 3.11 takes memory where it may not fail: each destructor a vector of values, operator[] the
// object or array that a null becomes. So these types have memory of a reserve where the system has none,
// also where they could do without.
template <class T>
concept JsonPart = std::same_as<T, Json> || std::same_as<T, std::vector<Json>> ||
    std::same_as<T, std::map<std::string, Json, std::less<>>> || std::same_as<T, OrderedJson> ||
    std::same_as<T, std::vector<OrderedJson>> ||
    std::same_as<T, nlohmann::ordered_map<std::string, OrderedJson, std::less<>,
                                          std::allocator<std::pair<const std::string, OrderedJson>>>>;

// Error (std::bad_alloc): the reserve of 64 MiB, which takes memory once it is used, is full, too.
void* allocate_json(std::size_t bytes);
void free_json(void* memory, std::size_t bytes) noexcept;

}  // namespace quire

template <quire::JsonPart T>
class std::allocator<T> {
 public:
  using value_type = T;

  allocator() = default;
  template <class U>
  allocator(const allocator<U>& /*other*/) noexcept {}

  // Memory for `count` values.
  T* allocate(std::size_t count) {
    if (count > static_cast<std::size_t>(-1) / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(quire::allocate_json(count * sizeof(T)));
  }
  void deallocate(T* values, std::size_t count) noexcept { quire::free_json(values, count * sizeof(T)); }
};
