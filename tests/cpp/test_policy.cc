// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/clock.h"
#include "core/policy.h"

namespace headrace {
namespace {

using Verdict = BatchChooser::Verdict;

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kSecond = 1'000 * kMillisecond;
constexpr std::int64_t kNow = 100 * kSecond;

// ---- When rows are eligible -----------------------------------------------------------------------------------------

TEST(Eligibility, IsAtOnceUnderTheAdaptivePolicy) {
  const PolicyOptions options{.policy = Policy::kAdaptive, .max_batch_size = 8, .batch_timeout_ns = kSecond};
  EXPECT_EQ(eligible_at_ns(options, 1, kNow), kNow);
}

TEST(Eligibility, OfAPartFullBatchComesWithTheTimeoutOfItsOldestRow) {
  const PolicyOptions options{.policy = Policy::kTimeout, .max_batch_size = 8, .batch_timeout_ns = kMillisecond};
  EXPECT_EQ(eligible_at_ns(options, 1, kNow), kNow + kMillisecond);
  EXPECT_EQ(eligible_at_ns(options, 7, kNow), kNow + kMillisecond);
}

TEST(Eligibility, OfAFullBatchIsAtOnce) {
  const PolicyOptions options{.policy = Policy::kTimeout, .max_batch_size = 8, .batch_timeout_ns = kMillisecond};
  EXPECT_EQ(eligible_at_ns(options, 8, kNow), kNow);
  EXPECT_EQ(eligible_at_ns(options, 9, kNow), kNow);
}

TEST(Eligibility, OfATimeoutBeyondTheEndOfTimeNeverComes) {
  const PolicyOptions options{.policy = Policy::kTimeout, .max_batch_size = 8, .batch_timeout_ns = kNever};
  EXPECT_EQ(eligible_at_ns(options, 1, kNow), kNever);
}

// ---- How long a run takes -------------------------------------------------------------------------------------------

TEST(ServiceTime, IsZeroWhereNothingWasMeasured) {
  EXPECT_EQ(ServiceTime().predict_ns(1, kNow), 0);
  EXPECT_EQ(ServiceTime().predict_ns(64, kNow), 0);
}

TEST(ServiceTime, BelievesTheFirstSampleAndAQuarterOfEachLaterOne) {
  ServiceTime service;
  service.record(8, 1'000, kNow);
  EXPECT_EQ(service.predict_ns(8, kNow), 1'000);
  service.record(8, 2'000, kNow);
  EXPECT_EQ(service.predict_ns(8, kNow), 1'250);
  service.record(8, 1'250, kNow);
  EXPECT_EQ(service.predict_ns(8, kNow), 1'250);
}

TEST(ServiceTime, IsLinearBetweenTheSizesThatWereMeasuredAndFlatOutside) {
  ServiceTime service;
  service.record(4, 1'000, kNow);
  service.record(8, 3'000, kNow);
  service.record(16, 4'000, kNow);
  EXPECT_EQ(service.predict_ns(1, kNow), 1'000);
  EXPECT_EQ(service.predict_ns(4, kNow), 1'000);
  EXPECT_EQ(service.predict_ns(5, kNow), 1'500);
  EXPECT_EQ(service.predict_ns(6, kNow), 2'000);
  EXPECT_EQ(service.predict_ns(8, kNow), 3'000);
  EXPECT_EQ(service.predict_ns(12, kNow), 3'500);
  EXPECT_EQ(service.predict_ns(17, kNow), 4'000);
}

TEST(ServiceTime, CountsASampleForAtMostFourTimesTheMean) {
  ServiceTime service;
  service.record(8, 1'000, kNow);
  service.record(8, 1'000'000, kNow);
  EXPECT_EQ(service.predict_ns(8, kNow), 1'750);
}

TEST(ServiceTime, CountsTheMeanForAtMostFourTimesASample) {
  ServiceTime service;
  service.record(8, 1'000'000, kNow);
  service.record(8, 1'000, kNow);
  EXPECT_EQ(service.predict_ns(8, kNow), 3'250);
}

TEST(ServiceTime, ForgetsWhatWasNotRenewedForMoreThanASecond) {
  ServiceTime service;
  service.record(8, 1'000, kNow);
  EXPECT_EQ(service.predict_ns(8, kNow + kSecond), 1'000);
  EXPECT_EQ(service.predict_ns(8, kNow + kSecond + 1), 0);
}

TEST(ServiceTime, PassesOverForgottenSizesToTheNextOnThatSide) {
  ServiceTime service;
  service.record(2, 1'000, kNow + kSecond);
  service.record(4, 9'000'000, kNow);
  service.record(6, 3'000, kNow + kSecond);
  EXPECT_EQ(service.predict_ns(4, kNow + kSecond + 1), 2'000);
  EXPECT_EQ(service.predict_ns(5, kNow + kSecond + 1), 2'500);
}

TEST(ServiceTime, StartsAnewAfterItForgot) {
  ServiceTime service;
  service.record(8, 1'000, kNow);
  service.record(8, 9'000, kNow + kSecond + 1);
  EXPECT_EQ(service.predict_ns(8, kNow + kSecond + 1), 9'000);
}

// ---- What goes into a batch -----------------------------------------------------------------------------------------

// Every run of any size takes 10 ms.
constexpr std::int64_t kMicrosecond = 1'000;

TEST(ServiceTime, KnowsNo99thPercentileOfASizeThatNeverRan) {
  ServiceTime service;
  service.record(8, kMicrosecond, kNow);
  EXPECT_EQ(service.p99_ns(7), kNever);
  EXPECT_NE(service.p99_ns(8), kNever);
}

TEST(ServiceTime, RoundsThe99thPercentileUpByAtMostAQuarter) {
  for (const std::int64_t run_ns : {0LL, 1LL, 5LL, 7LL, 8LL, 9LL, 999LL, 1'024LL, 50'000'000LL, 3'600'000'000'000LL}) {
    ServiceTime service;
    service.record(1, run_ns, kNow);
    EXPECT_GE(service.p99_ns(1), std::min<std::int64_t>(run_ns, std::int64_t{1} << 40)) << run_ns;
    EXPECT_LE(service.p99_ns(1), run_ns + run_ns / 4 + 5) << run_ns;
  }
}

TEST(ServiceTime, LetsOneRunInAHundredTakeLongerThanThe99thPercentile) {
  ServiceTime service;
  for (int i = 0; i < 99; ++i) service.record(1, kMicrosecond, kNow);
  service.record(1, 1'000 * kMicrosecond, kNow);
  EXPECT_LT(service.p99_ns(1), 2 * kMicrosecond);
  service.record(1, 1'000 * kMicrosecond, kNow);
  EXPECT_GE(service.p99_ns(1), 1'000 * kMicrosecond);
}

TEST(ServiceTime, ForgetsHalfOfTheOldRunsOverAndOver) {
  ServiceTime service;
  for (int i = 0; i < 100'000; ++i) service.record(1, 1'000 * kMicrosecond, kNow);
  int runs = 0;
  for (; service.p99_ns(1) >= 1'000 * kMicrosecond; ++runs) service.record(1, kMicrosecond, kNow);
  EXPECT_GT(runs, 256);
  EXPECT_LT(runs, 8 * 512);
}

class BatchChooserTest : public testing::Test {
 protected:
  BatchChooserTest() { service_.record(1, 10 * kMillisecond, kNow); }

  BatchChooser choose(std::int64_t rows_max, std::int64_t backlog_rows) {
    return BatchChooser(service_, rows_max, backlog_rows, kNow);
  }

  static constexpr std::int64_t kInTime = kNow + 10 * kMillisecond;
  static constexpr std::int64_t kTooLate = kInTime - 1;

  ServiceTime service_;
};

TEST_F(BatchChooserTest, TakesWhatWaitsUntilTheBatchIsFull) {
  BatchChooser chooser = choose(4, 5);
  EXPECT_EQ(chooser.consider(1, kNever), Verdict::kTake);
  EXPECT_EQ(chooser.consider(2, kNever), Verdict::kTake);
  EXPECT_FALSE(chooser.full());
  EXPECT_EQ(chooser.consider(1, kNever), Verdict::kTake);
  EXPECT_TRUE(chooser.full());
  EXPECT_EQ(chooser.rows(), 4);
}

TEST_F(BatchChooserTest, StopsBeforeARequestThatDoesNotFitAndIsFullThen) {
  BatchChooser chooser = choose(4, 5);
  EXPECT_EQ(chooser.consider(3, kNever), Verdict::kTake);
  EXPECT_EQ(chooser.consider(2, kNever), Verdict::kStop);
  EXPECT_TRUE(chooser.full());
  EXPECT_EQ(chooser.rows(), 3);
}

TEST_F(BatchChooserTest, IsNotFullWhereNothingMoreWaits) {
  BatchChooser chooser = choose(4, 3);
  EXPECT_EQ(chooser.consider(3, kNever), Verdict::kTake);
  EXPECT_FALSE(chooser.full());
}

TEST_F(BatchChooserTest, ExpiresADeadlineThatHasComeAndNotOneTickBefore) {
  service_ = {};
  BatchChooser chooser = choose(4, 3);
  EXPECT_EQ(chooser.consider(1, kNow), Verdict::kExpire);
  EXPECT_EQ(chooser.consider(1, kNow - kSecond), Verdict::kExpire);
  EXPECT_EQ(chooser.consider(1, kNow + 1), Verdict::kTake);
  EXPECT_EQ(chooser.rows(), 1);
}

TEST_F(BatchChooserTest, ExpiresTheLastRequestTooOnceItsDeadlineHasCome) {
  EXPECT_EQ(choose(4, 1).consider(1, kNow), Verdict::kExpire);
}

TEST_F(BatchChooserTest, DropsNothingWhereNothingWasMeasured) {
  service_ = {};
  BatchChooser chooser = choose(2, 100);
  EXPECT_EQ(chooser.consider(1, kNow + 1), Verdict::kTake);
  EXPECT_EQ(chooser.consider(1, kNow + 1), Verdict::kTake);
  EXPECT_TRUE(chooser.full());
}

TEST_F(BatchChooserTest, DropsWhatCannotBeAnsweredInTimeWhileOthersWait) {
  BatchChooser chooser = choose(4, 3);
  EXPECT_EQ(chooser.consider(1, kTooLate), Verdict::kExpire);
  EXPECT_EQ(chooser.consider(1, kInTime), Verdict::kTake);
  EXPECT_EQ(chooser.consider(1, kTooLate), Verdict::kExpire);
  EXPECT_EQ(chooser.rows(), 1);
}

TEST_F(BatchChooserTest, NeverDropsTheLastThatWaits) {
  EXPECT_EQ(choose(4, 1).consider(1, kTooLate), Verdict::kTake);
  BatchChooser chooser = choose(4, 3);
  EXPECT_EQ(chooser.consider(1, kTooLate), Verdict::kExpire);
  EXPECT_EQ(chooser.consider(1, kTooLate), Verdict::kExpire);
  EXPECT_EQ(chooser.consider(1, kTooLate), Verdict::kTake);
}

TEST_F(BatchChooserTest, NeverDropsALoneRequestOfMoreRowsThanABatchHas) {
  EXPECT_EQ(choose(1, 64).consider(64, kTooLate), Verdict::kTake);
}

TEST_F(BatchChooserTest, DropsNothingWithoutADeadline) {
  service_.record(1, 1'000 * kSecond, kNow);
  BatchChooser chooser = choose(2, 100);
  EXPECT_EQ(chooser.consider(1, kNever), Verdict::kTake);
  EXPECT_EQ(chooser.consider(1, kNever), Verdict::kTake);
}

TEST_F(BatchChooserTest, AddsNothingThatWouldMakeWhatItHasTooLate) {
  service_.record(2, 20 * kMillisecond, kNow);
  BatchChooser chooser = choose(4, 2);
  EXPECT_EQ(chooser.consider(1, kNow + 19 * kMillisecond), Verdict::kTake);
  EXPECT_EQ(chooser.consider(1, kNever), Verdict::kStop);
  EXPECT_FALSE(chooser.full());
  EXPECT_EQ(chooser.rows(), 1);
}

TEST_F(BatchChooserTest, AddsWhatLeavesEnoughTimeForAll) {
  service_.record(2, 20 * kMillisecond, kNow);
  BatchChooser chooser = choose(4, 2);
  EXPECT_EQ(chooser.consider(1, kNow + 20 * kMillisecond), Verdict::kTake);
  EXPECT_EQ(chooser.consider(1, kNever), Verdict::kTake);
}

// One row takes 10 ms and four take 40: with four more waiting, a head that has only 39 would force a batch of three.
TEST_F(BatchChooserTest, DropsAHeadThatWouldForceASmallBatchUnderOverload) {
  service_.record(4, 40 * kMillisecond, kNow);
  BatchChooser chooser = choose(4, 5);
  EXPECT_EQ(chooser.consider(1, kNow + 39 * kMillisecond), Verdict::kExpire);
  EXPECT_EQ(chooser.consider(1, kNow + 40 * kMillisecond), Verdict::kTake);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(chooser.consider(1, kNever), Verdict::kTake);
  EXPECT_TRUE(chooser.full());
}

TEST_F(BatchChooserTest, RunsASmallBatchForItsHeadWithoutOverload) {
  service_.record(4, 40 * kMillisecond, kNow);
  BatchChooser chooser = choose(4, 4);  // three behind the head are no full batch
  EXPECT_EQ(chooser.consider(1, kNow + 39 * kMillisecond), Verdict::kTake);
  EXPECT_EQ(chooser.consider(1, kNever), Verdict::kTake);
  EXPECT_EQ(chooser.consider(1, kNever), Verdict::kTake);
  EXPECT_EQ(chooser.consider(1, kNever), Verdict::kStop);
  EXPECT_EQ(chooser.rows(), 3);
}

// Of requests that come in pairs, the second is never dropped; the first is, while the prediction is wrong.
TEST_F(BatchChooserTest, RefusesNobodyForMoreThanASecondAfterAnOutlier) {
  for (const std::int64_t rows_max : {1, 2}) {
    for (const std::int64_t pace_ns : {kMillisecond, 100 * kMillisecond, 400 * kMillisecond, 990 * kMillisecond}) {
      ServiceTime service;
      std::int64_t now_ns = kNow;
      service.record(1, kMillisecond, now_ns);
      now_ns += 5 * kSecond;
      service.record(1, 5 * kSecond, now_ns);
      const std::int64_t outlier_ns = now_ns;
      while (now_ns < outlier_ns + 20 * kSecond) {
        now_ns += pace_ns;
        for (std::int64_t waiting = 2; waiting > 0;) {
          BatchChooser chooser(service, rows_max, waiting, now_ns);
          while (waiting > 0 && !chooser.full()) {
            const Verdict verdict = chooser.consider(1, now_ns + 200 * kMillisecond);
            if (verdict == Verdict::kStop) break;
            --waiting;
            if (verdict == Verdict::kExpire) {
              ASSERT_LE(now_ns - outlier_ns, kSecond) << "a pair each " << pace_ns << " ns, max " << rows_max;
            }
          }
          if (chooser.rows() > 0) service.record(chooser.rows(), kMillisecond, now_ns);
        }
      }
    }
  }
}

}  // namespace
}  // namespace headrace
