#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <random>
#include <utility>

namespace quire::grammar {

// SipHash (Aumasson and Bernstein, 2012) of 128 bits, with one round a word. Its key is this process's own,
// so that nobody can write two sources whose expressions have one hash: what is kept by it is not compared.
class KeyedHash {
 public:
  KeyedHash() {
    static const std::array<std::uint64_t, 2> key = [] {
      std::random_device random;
      const auto word = [&] { return std::uint64_t{random()} << 32 | random(); };
      return std::array{word(), word()};
    }();
    a_ = key[0] ^ 0x736F6D6570736575u;
    b_ = key[1] ^ 0x646F72616E646F83u;
    c_ = key[0] ^ 0x6C7967656E657261u;
    d_ = key[1] ^ 0x7465646279746573u;
  }
  void add(std::uint64_t word) {
    d_ ^= word;
    mix();
    a_ ^= word;
  }
  std::pair<std::uint64_t, std::uint64_t> finish() {
    c_ ^= 0xEE;
    const std::uint64_t first = mixed();
    b_ ^= 0xDD;
    return {first, mixed()};
  }

 private:
  std::uint64_t mixed() {
    for (int round = 0; round < 3; ++round) mix();
    return a_ ^ b_ ^ c_ ^ d_;
  }
  void mix() {
    a_ += b_;
    c_ += d_;
    b_ = std::rotl(b_, 13) ^ a_;
    d_ = std::rotl(d_, 16) ^ c_;
    a_ = std::rotl(a_, 32) + d_;
    c_ += b_;
    d_ = std::rotl(d_, 21) ^ a_;
    b_ = std::rotl(b_, 17) ^ c_;
    c_ = std::rotl(c_, 32);
  }

  std::uint64_t a_, b_, c_, d_;
};

}  // namespace quire::grammar
