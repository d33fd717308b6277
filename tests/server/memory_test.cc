// The ledger of the bytes that calls hold.
#include "server/base/memory.h"

#include <gmock/gmock.h>

#include <random>
#include <thread>
#include <vector>

#include "server/base/status_details.h"

namespace edgewise::server {
namespace {

using ::testing::HasSubstr;

TEST(MemoryLedgerTest, RefusesWhatIsMoreThanIsLeftAndNamesTheLimit) {
  MemoryLedger ledger(100);
  EXPECT_TRUE(ledger.Reserve(60).ok());
  const absl::Status refused = ledger.Reserve(41);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("needs 41 bytes of memory; others hold 60 of the 100 bytes"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--max_memory"));
  EXPECT_TRUE(refused.GetPayload(kRetryInfoUrl).has_value());
  EXPECT_EQ(RejectionOf(refused), Rejection::kOutOfMemory);
  EXPECT_EQ(ledger.used(), 60u);
  EXPECT_TRUE(ledger.Reserve(40).ok());
  EXPECT_FALSE(ledger.Reserve(~uint64_t{0}).ok());
  ledger.Release(100);
  EXPECT_EQ(ledger.used(), 0u);
}

TEST(MemoryLedgerTest, HoldsReleaseWhatTheyHoldOnce) {
  MemoryLedger ledger(100);
  {
    MemoryHold hold(ledger);
    EXPECT_TRUE(hold.Resize(70).ok());
    EXPECT_FALSE(hold.Resize(101).ok());
    EXPECT_EQ(hold.bytes(), 70u);
    MemoryHold moved = std::move(hold);
    MemoryHold other(ledger);
    EXPECT_TRUE(other.Resize(30).ok());
    other = std::move(moved);
    EXPECT_EQ(other.bytes(), 70u);
    other.Shrink(10);
    other.Shrink(20);
    EXPECT_EQ(other.bytes(), 10u);
    EXPECT_EQ(ledger.used(), 40u);
  }
  EXPECT_EQ(ledger.used(), 0u);
  EXPECT_TRUE(MemoryHold().Resize(1 << 30).ok());
}

TEST(MemoryLedgerTest, SmallerLimitTakesNothingAwayAndRefusesUntilEnoughIsFree) {
  MemoryLedger ledger(100);
  MemoryHold hold(ledger);
  EXPECT_TRUE(hold.Resize(80).ok());
  ledger.SetLimit(50);
  EXPECT_FALSE(ledger.Reserve(1).ok());
  EXPECT_TRUE(hold.Resize(40).ok());
  EXPECT_TRUE(ledger.Reserve(10).ok());
  ledger.Release(10);
}

TEST(MemoryLedgerTest, ThreadsNeverHoldMoreThanTheLimitTogether) {
  MemoryLedger ledger(1000);
  std::atomic<bool> over = false;
  std::vector<std::jthread> threads;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&ledger, &over, seed] {
      std::mt19937 random(seed);
      MemoryHold hold(ledger);
      for (int i = 0; i < 20000; ++i) {
        if (hold.Resize(random() % 600).ok() && ledger.used() > 1000) over = true;
      }
    });
  }
  threads.clear();
  EXPECT_FALSE(over);
  EXPECT_EQ(ledger.used(), 0u);
}

TEST(MemoryAccountTest, APrincipalHoldsAtMostThreeTimesWhatItLeavesFree) {
  MemoryLedger ledger(1000);
  const std::shared_ptr<MemoryAccount> first = ledger.AccountOf("a"), second = ledger.AccountOf("b");
  EXPECT_EQ(ledger.AccountOf("a"), first);
  MemoryHold one(*first), more(*first), other(*second);
  EXPECT_TRUE(one.Resize(700).ok());
  EXPECT_TRUE(more.Resize(50).ok());
  const absl::Status refused = more.Resize(51);
  EXPECT_EQ(RejectionOf(refused), Rejection::kOutOfMemory);
  EXPECT_TRUE(refused.GetPayload(kRetryInfoUrl).has_value());
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("others hold 0 of the 1000 bytes that the server has for calls (--max_memory), and calls of "
                        "this client 750; they may hold at most 3 times what stays free"));
  EXPECT_TRUE(other.Resize(187).ok()) << "of the 250 that are left";
  EXPECT_FALSE(other.Resize(188).ok());
  one.Shrink(0);
  EXPECT_TRUE(other.Resize(700).ok());
  EXPECT_EQ(ledger.used(), 750u);
}

TEST(MemoryAccountTest, EndsWithTheLastCallOfItsPrincipal) {
  MemoryLedger ledger(1000);
  const std::shared_ptr<MemoryAccount> account = ledger.AccountOf("a");
  MemoryHold hold(*account);
  EXPECT_TRUE(hold.Resize(600).ok());
  EXPECT_EQ(account->used(), 600u);
  const auto part = [&] {
    EXPECT_FALSE(hold.Resize(800).ok());
    return ledger.TakeWanting();
  };
  EXPECT_EQ(part(), 1000u) << "it is the only one";
  {
    const std::shared_ptr<MemoryAccount> other = ledger.AccountOf("b");
    EXPECT_EQ(part(), 0u) << "800 are more than the part of one of two";
  }
  EXPECT_EQ(part(), 1000u);
}

TEST(MemoryAccountTest, OneThatLacksItsPartIsToldFromOneThatWantsMore) {
  MemoryLedger ledger(1000);
  const std::shared_ptr<MemoryAccount> first = ledger.AccountOf("a"), second = ledger.AccountOf("b");
  MemoryHold one(*first), other(*second);
  ASSERT_TRUE(one.Resize(750).ok());
  EXPECT_FALSE(one.Resize(751).ok());
  EXPECT_EQ(ledger.TakeWanting(), 0u) << "it has more than its part";
  EXPECT_FALSE(other.Resize(501).ok());
  EXPECT_EQ(ledger.TakeWanting(), 0u) << "it would have";
  EXPECT_FALSE(other.Resize(500).ok());
  EXPECT_EQ(ledger.TakeWanting(), 500u);
  EXPECT_EQ(ledger.TakeWanting(), 0u);
}

TEST(MemoryAccountTest, ThreadsOfOnePrincipalKeepItsShareTogether) {
  MemoryLedger ledger(1000);
  const std::shared_ptr<MemoryAccount> account = ledger.AccountOf("a");
  std::atomic<bool> over = false;
  std::vector<std::jthread> threads;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      MemoryHold hold(*account);
      for (int i = 0; i < 20000; ++i) {
        if (hold.Resize(random() % 600).ok() && ledger.used() > 750) over = true;
      }
    });
  }
  threads.clear();
  EXPECT_FALSE(over);
  EXPECT_EQ(ledger.used(), 0u);
}

TEST(AvailableMemoryTest, IsOfThisMachine) {
  EXPECT_GT(AvailableMemory(), uint64_t{64} << 20);
  EXPECT_LT(AvailableMemory(), uint64_t{1} << 50);
}

}  // namespace
}  // namespace edgewise::server
