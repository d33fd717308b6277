// Messages where a GPU is asked for and cannot be used: the reason, and what to do. The driver and the module are made
// up (fake_driver.cc, fake_module.cc); they lie where this program looks for them.
#include "kernels/cuda_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace edgewise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class CudaModuleTest : public ::testing::Test {
 protected:
  ~CudaModuleTest() override {
    for (const auto& [name, _] : set_) unsetenv(name.c_str());
  }
  void Set(const std::string& name, const std::string& value) {
    set_[name] = value;
    setenv(name.c_str(), value.c_str(), 1);
  }
  static absl::Status Made(const std::string& device) {
    BackendOptions options;
    options.device = device;
    return CreateBackend(options).status();
  }
  // The log's reason, with --device=auto.
  static std::string WhyCpu() {
    std::string why;
    BackendOptions options;
    options.device = "auto";
    EXPECT_TRUE(CreateBackend(options, &why).ok());
    return why;
  }

 private:
  std::map<std::string, std::string> set_;
};

TEST_F(CudaModuleTest, ADriverWithoutDevicesSaysWhatMayHideThem) {
  const absl::Status status = Made("cuda:1");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("device cuda:1: the NVIDIA driver found no device (CUDA_ERROR_NO_DEVICE); "),
                    HasSubstr("docker run --gpus all"), HasSubstr("use --device=cpu or auto")));
  EXPECT_EQ(WhyCpu(), "the NVIDIA driver found no device (CUDA_ERROR_NO_DEVICE)");
}

TEST_F(CudaModuleTest, NamesThatHideEveryDeviceAreSaid) {
  for (const std::string visible : {"", "-1", "MIG-00000000-0000-0000-0000-000000000000"}) {
    Set("CUDA_VISIBLE_DEVICES", visible);
    Set("FAKE_DRIVER_ERROR", "100");
    EXPECT_THAT(std::string(Made("cuda").message()), AllOf(HasSubstr("with CUDA_VISIBLE_DEVICES=\"" + visible + "\"; "),
                                                           HasSubstr("`nvidia-smi -L`"), HasSubstr("MIG-...")));
    EXPECT_EQ(WhyCpu(),
              "the NVIDIA driver found no device (CUDA_ERROR_NO_DEVICE) with CUDA_VISIBLE_DEVICES=\"" + visible + "\"");
  }
}

TEST_F(CudaModuleTest, AnErrorOfTheDriverIsNamedWithWhatMendsIt) {
  for (const auto& [error, name, advice] : {std::tuple("802", "(CUDA_ERROR_SYSTEM_NOT_READY)", "fabric manager"),
                                            {"803", "(CUDA error 803)", "start this machine again"},
                                            {"999", "(CUDA error 999)", "`nvidia-smi`"}}) {
    Set("FAKE_DRIVER_ERROR", error);
    Set("FAKE_DRIVER_DEVICES", "1");
    EXPECT_THAT(std::string(Made("cuda").message()), AllOf(HasSubstr(name), HasSubstr(advice)));
  }
}

TEST_F(CudaModuleTest, AutoGoesToTheCpuWhereTheGpuCannotBeUsedAndNotWhereItIsFull) {
  Set("FAKE_DRIVER_DEVICES", "2");
  Set("FAKE_MODULE_CODE", std::to_string(static_cast<int>(absl::StatusCode::kUnavailable)));
  EXPECT_EQ(Made("cuda:1"), absl::UnavailableError("device cuda:1: device 1 is no good; use --device=cpu or auto"));
  EXPECT_EQ(WhyCpu(), "device 0 is no good");
  Set("FAKE_MODULE_CODE", std::to_string(static_cast<int>(absl::StatusCode::kResourceExhausted)));
  const std::string full =
      "device 0 is no good; end what holds it (`nvidia-smi`), name another GPU, or use --device=cpu";
  EXPECT_EQ(Made("auto"), absl::ResourceExhaustedError("device cuda: " + full));
}

TEST_F(CudaModuleTest, AModuleThatCannotBeOpenedIsNamed) {
  Set("EDGEWISE_CUDA_MODULE", "/nonexistent/module.so");
  EXPECT_EQ(WhyCpu(), "/nonexistent/module.so: cannot open shared object file: No such file or directory");
  Set("EDGEWISE_CUDA_MODULE", EDGEWISE_BROKEN_MODULE);
  EXPECT_THAT(std::string(Made("cuda").message()), HasSubstr("; libcublasLt of CUDA 13 has to be beside the module"));
  Set("EDGEWISE_CUDA_MODULE", "");
  EXPECT_THAT(Made("cuda"), absl::UnimplementedError("device cuda: this build has no CUDA backend (libedgewise_cuda.so "
                                                     "is not beside the program); use --device=cpu or auto"));
}

}  // namespace
}  // namespace edgewise
