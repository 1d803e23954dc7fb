// Lets libFuzzer see what GCC's code does. GCC calls a function at the beginning of each basic block
// (-fsanitize-coverage=trace-pc); libFuzzer reads a counter of 8 bits for each place (LLVM's
// SanitizerCoverage, "Inline 8bit-counters"). Two places whose addresses fall together share one.
#include <array>
#include <cstddef>
#include <cstdint>

extern "C" void __sanitizer_cov_8bit_counters_init(std::uint8_t* begin, std::uint8_t* end);

namespace {

constexpr int kBits = 17;
std::array<std::uint8_t, std::size_t{1} << kBits> counters;

[[gnu::constructor]] void tell_counters() {
  __sanitizer_cov_8bit_counters_init(counters.data(), counters.data() + counters.size());
}

}  // namespace

// Hidden: libFuzzer has one of this name, which says that it is of no use.
extern "C" [[gnu::visibility("hidden")]] void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  ++counters[place * 0x9E3779B97F4A7C15 >> (64 - kBits)];
}

// Comparisons of floating-point numbers, which only GCC tells of.
extern "C" void __sanitizer_cov_trace_cmpf(float /*a*/, float /*b*/) {}
extern "C" void __sanitizer_cov_trace_cmpd(double /*a*/, double /*b*/) {}
