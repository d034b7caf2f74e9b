// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/timer.h"
#include "fake_clock.h"
#include "router.h"

namespace headrace {
namespace {

class RouterTest : public testing::Test {
 protected:
  RouterTest() {
    for (const std::int64_t version : {2, 10, 9}) router_.add("digits", model("digits", version));
    router_.add("other", model("other", 1));
  }

  std::shared_ptr<Model> model(std::string name, std::int64_t version) {
    auto made = std::make_shared<Model>(std::move(name), version, timer_, clock_);
    for (const char* signature : {"serving_default", "classify"})
      made->add_lane({.name = signature, .inputs = {}, .outputs = {}}, {}, nullptr, nullptr);
    return made;
  }

  static ModelSpec spec(std::string_view name) {
    ModelSpec spec;
    spec.present = true;
    spec.name = name;
    return spec;
  }

  void expect_error(const ModelSpec& spec, Code code, std::string_view message) {
    Router::Route route;
    const Status status = router_.route(spec, &route);
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), message);
    EXPECT_EQ(route.lane, nullptr);
  }

  FakeClock clock_;
  std::shared_ptr<Timer> timer_ = std::make_shared<Timer>(clock_);
  Router router_;
};

TEST_F(RouterTest, FindsTheHighestVersionAndTheDefaultSignatureWhereNoneIsNamed) {
  Router::Route route;
  ASSERT_TRUE(router_.route(spec("digits"), &route).ok());
  EXPECT_EQ(route.model->name(), "digits");
  EXPECT_EQ(route.model->version(), 10);
  EXPECT_EQ(route.lane, route.model->lane("serving_default"));
  ASSERT_TRUE(router_.route(spec("other"), &route).ok());
  EXPECT_EQ(route.model->name(), "other");
}

TEST_F(RouterTest, FindsTheVersionAndTheSignatureThatAreNamed) {
  ModelSpec named = spec("digits");
  named.version = 2;
  named.signature_name = "classify";
  Router::Route route;
  ASSERT_TRUE(router_.route(named, &route).ok());
  EXPECT_EQ(route.model->version(), 2);
  EXPECT_EQ(route.lane, route.model->lane("classify"));
}

TEST_F(RouterTest, SaysWhatIsMissingInTensorFlowServingsWords) {
  expect_error({}, Code::kInvalidArgument, "Missing ModelSpec");
  expect_error(spec(""), Code::kInvalidArgument, "ModelSpec has no name specified.");
  expect_error(spec("nothing"), Code::kNotFound, "Servable not found for request: Latest(nothing)");
  ModelSpec version = spec("digits");
  version.version = 99;
  expect_error(version, Code::kNotFound, "Servable not found for request: Specific(digits, 99)");
  ModelSpec label = spec("digits");
  label.version_label = "stable";
  expect_error(label, Code::kUnavailable, "Model labels does not init yet.stable");
}

TEST_F(RouterTest, NamesTheSignatureThatIsMissing) {
  ModelSpec named = spec("digits");
  named.signature_name = "regress";
  Router::Route route;
  const Status status = router_.route(named, &route);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message(), "Serving signature key \"regress\" not found.");
}

TEST_F(RouterTest, ReplacesAModelOfTheSameVersion) {
  const std::shared_ptr<Model> again = model("other", 1);
  router_.add("other", again);
  Router::Route route;
  ASSERT_TRUE(router_.route(spec("other"), &route).ok());
  EXPECT_EQ(route.model, again.get());
}

}  // namespace
}  // namespace headrace
