// Which device runs, and what is said where none can.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "cli/run_program.h"

namespace quire {
namespace {

using nlohmann::json;
using testing::ProgramResult;
using testing::run_quire;

json diagnosis() {
  const ProgramResult result = run_quire("doctor --json");
  EXPECT_EQ(result.err, "");
  return json::parse(result.out);
}

TEST(DoctorTest, SaysWhatTheMachineHas) {
  const json machine = diagnosis();
  EXPECT_GE(machine.at("cores"), 1);
  EXPECT_GT(machine.at("memory_bytes"), std::size_t{1} << 28);
  EXPECT_EQ(machine.at("cpu_isas").at(0), "reference");
  // Either there is a GPU, or there is a reason.
  EXPECT_EQ(machine.at("gpus").empty(), !machine.at("gpu_problem").get<std::string>().empty());
  EXPECT_EQ(run_quire("doctor").code, machine.at("problems").empty() ? 0 : 1);
}

TEST(DeviceFlagTest, AnUnknownDeviceIsRefusedByName) {
  for (const char* device : {"tpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x"}) {
    const ProgramResult result = run_quire(std::string("generate -p hi --max-tokens 1 --device ") + device);
    EXPECT_EQ(result.code, 2) << device;
    EXPECT_EQ(result.err,
              "quire: device \"" + std::string(device) + "\" is not known; use auto, cpu, cuda or cuda:N\n");
  }
}

TEST(DeviceFlagTest, AGpuThatIsNotThereIsRefusedInOneLine) {
  const json machine = diagnosis();
  const auto beyond = "cuda:" + std::to_string(machine.at("gpus").size());
  const ProgramResult result = run_quire("generate -p hi --max-tokens 1 --device " + beyond);
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find("device " + beyond + " cannot be used: "), std::string::npos) << result.err;
}

TEST(DeviceFlagTest, AutoFallsBackToTheCpu) {
  if (!diagnosis().at("gpus").empty()) GTEST_SKIP() << "there is a GPU";
  const ProgramResult result = run_quire("-v generate -p hi --max-tokens 1 --device auto");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("on the CPU: "), std::string::npos) << result.err;
}

}  // namespace
}  // namespace quire
