// SPDX-License-Identifier: Apache-2.0

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/slab.h"
#include "run/cuda_pinner.h"

namespace headrace {
namespace {

constexpr const char* kOpened = "cuInit(0) cuDeviceGet(0) cuDevicePrimaryCtxRetain(7)";

class CudaPinnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    library_ = dlopen(FAKE_LIBCUDA_PATH, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    function<void (*)()>("fake_cuda_reset")();
  }

  template <typename Function>
  Function function(const char* name) {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }

  std::string calls() { return function<const char* (*)()>("fake_cuda_calls")(); }
  void forget_calls() { function<void (*)()>("fake_cuda_reset")(); }
  void fail(const char* name, int error) { function<void (*)(const char*, int)>("fake_cuda_fail")(name, error); }

 private:
  void* library_ = nullptr;
};

TEST_F(CudaPinnerTest, RetainsThePrimaryContextOfTheFirstDeviceAndReleasesItInTheEnd) {
  {
    const CudaPinner pinner(FAKE_LIBCUDA_PATH);
    EXPECT_TRUE(pinner.status().ok()) << pinner.status().message();
    EXPECT_EQ(calls(), kOpened);
  }
  EXPECT_EQ(calls(), std::string(kOpened) + " cuDevicePrimaryCtxRelease(7)");
}

TEST_F(CudaPinnerTest, RegistersMemoryPortablyWithTheContextCurrentMeanwhile) {
  CudaPinner pinner(FAKE_LIBCUDA_PATH);
  forget_calls();
  alignas(64) static std::byte memory[4096];
  EXPECT_TRUE(pinner.pin(memory, sizeof(memory)));
  EXPECT_EQ(calls(), "cuCtxPushCurrent(primary) cuMemHostRegister(4096,1) cuCtxPopCurrent()");
  forget_calls();
  pinner.unpin(memory);
  EXPECT_EQ(calls(), "cuCtxPushCurrent(primary) cuMemHostUnregister() cuCtxPopCurrent()");
}

TEST_F(CudaPinnerTest, PinsEverySlabOnceAndUnregistersItBeforeItsMemoryGoes) {
  forget_calls();
  {
    SlabPool pool(std::make_shared<CudaPinner>(FAKE_LIBCUDA_PATH));
    SlabPtr first = pool.acquire(5000);
    ASSERT_NE(first, nullptr);
    EXPECT_TRUE(first->pinned());
    first.reset();
    EXPECT_TRUE(pool.acquire(5000)->pinned());  // the same one again
    EXPECT_EQ(pool.allocated(), 1);
    EXPECT_EQ(pool.pinned(), 1);
  }
  const std::string all = calls();
  EXPECT_EQ(all.find("cuMemHostRegister"), all.rfind("cuMemHostRegister"));
  const std::string end = "cuMemHostUnregister() cuCtxPopCurrent() cuDevicePrimaryCtxRelease(7)";
  ASSERT_GE(all.size(), end.size());
  EXPECT_EQ(all.substr(all.size() - end.size()), end);
}

TEST_F(CudaPinnerTest, LeavesMemoryUnpinnedWhereItCannotBeRegistered) {
  const auto pinner = std::make_shared<CudaPinner>(FAKE_LIBCUDA_PATH);
  fail("cuMemHostRegister", 2);
  SlabPool pool(pinner);
  const SlabPtr slab = pool.acquire(100);
  ASSERT_NE(slab, nullptr);
  EXPECT_FALSE(slab->pinned());
  EXPECT_EQ(pool.pinned(), 0);
  fail("cuCtxPushCurrent", 201);
  EXPECT_FALSE(pinner->pin(slab->data(), 100));
}

TEST_F(CudaPinnerTest, SaysInWordsWhyThereIsNoDevice) {
  fail("cuInit", 100);
  CudaPinner pinner(FAKE_LIBCUDA_PATH);
  EXPECT_EQ(pinner.status().code(), Code::kUnavailable);
  EXPECT_EQ(pinner.status().message(), "cuInit: no CUDA-capable device is detected");
  std::byte memory[64];
  EXPECT_FALSE(pinner.pin(memory, sizeof(memory)));
  EXPECT_EQ(calls(), "cuInit(0)");
}

TEST_F(CudaPinnerTest, NamesAnErrorWithoutTextByItsNumber) {
  fail("cuDeviceGet", 101);
  EXPECT_EQ(CudaPinner(FAKE_LIBCUDA_PATH).status().message(), "cuDeviceGet: error 101");
  forget_calls();
  fail("cuDevicePrimaryCtxRetain", 2);
  EXPECT_EQ(CudaPinner(FAKE_LIBCUDA_PATH).status().message(), "cuDevicePrimaryCtxRetain: error 2");
  EXPECT_EQ(calls(), kOpened);  // what was not retained is not released
}

TEST(CudaPinner, SaysThatThereIsNoDriver) {
  const CudaPinner pinner("libno-such-driver.so.1");
  EXPECT_EQ(pinner.status().code(), Code::kUnavailable);
  EXPECT_EQ(pinner.status().message(), "no NVIDIA driver: libno-such-driver.so.1 cannot be loaded");
}

TEST(CudaPinner, SaysThatALibraryLacksItsFunctions) {
  EXPECT_EQ(CudaPinner("libm.so.6").status().message(), "libm.so.6 is too old: it lacks a function");
}

}  // namespace
}  // namespace headrace
