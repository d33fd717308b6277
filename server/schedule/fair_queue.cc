#include "server/schedule/fair_queue.h"

#include <algorithm>
#include <utility>

#include "server/schedule/degrade.h"

namespace edgewise::server {

FairQueue::Usage FairQueue::UsageOf(const std::string& principal) const {
  const auto usage = usage_.find(principal);
  return usage == usage_.end() ? Usage() : usage->second;
}

Account& FairQueue::Open(size_t level, const std::string& principal) {
  const auto [account, opened] = levels_[level].accounts.try_emplace(principal);
  if (opened) account->second.served = levels_[level].clock;
  return account->second;
}

void FairQueue::CloseIdle(size_t level, const std::function<bool(const std::string& principal)>& keep) {
  std::erase_if(levels_[level].accounts,
                [&](const auto& entry) { return entry.second.waiting.empty() && !keep(entry.first); });
}

void FairQueue::Charge(size_t level, const std::string& principal, double seconds, double own) {
  Open(level, principal).served += own * seconds;
  levels_[level].clock += seconds / static_cast<double>(levels_[level].accounts.size());
}

void FairQueue::Push(RequestPtr request) {
  Account& account = Open(request->ticket.priority - 1, request->ticket.principal.name);
  Usage& usage = usage_[request->ticket.principal.name];
  ++usage.requests, ++requests_;
  usage.cost += request->work.cost, cost_ += request->work.cost;
  account.seconds += LeastSeconds(*request);
  account.longest = std::max(account.longest, request->forecast.seconds);
  account.waiting.push_back(std::move(request));
}

// The sums without the request, which is taken next.
void FairQueue::Leave(Account& account, const Request& request) {
  const auto usage = usage_.find(request.ticket.principal.name);
  --usage->second.requests, --requests_;
  usage->second.cost -= request.work.cost, cost_ -= request.work.cost;
  if (usage->second.requests == 0) usage_.erase(usage);
  account.seconds -= LeastSeconds(request);
}

RequestPtr FairQueue::Take(size_t level, const std::string& principal, size_t index) {
  Account& account = levels_[level].accounts.find(principal)->second;
  const auto at = account.waiting.begin() + static_cast<int64_t>(index);
  RequestPtr request = std::move(*at);
  account.waiting.erase(at);
  Leave(account, *request);
  if (account.waiting.empty()) account.seconds = account.longest = 0.0;
  return request;
}

std::vector<RequestPtr> FairQueue::TakeAll() {
  std::vector<RequestPtr> all;
  for (size_t level = 0; level < kPriorityLevels; ++level) {
    for (const auto& [principal, account] : accounts(level)) {
      while (!account.waiting.empty()) all.push_back(Take(level, principal, 0));
    }
  }
  return all;
}

void FairQueue::TakeIf(const std::function<absl::Status(const Request&)>& reason, std::vector<EndedRequest>& ended) {
  for (Level& level : levels_) {
    for (auto& [principal, account] : level.accounts) {
      for (RequestPtr& request : account.waiting) {
        absl::Status status = reason(*request);
        if (status.ok()) continue;
        Leave(account, *request);
        ended.push_back({std::move(request), std::move(status)});
      }
      std::erase(account.waiting, nullptr);
      if (account.waiting.empty()) account.seconds = account.longest = 0.0;
    }
  }
}

std::vector<RequestPtr> FairQueue::MakeRoom(const std::string& principal, uint64_t cost, size_t max_requests,
                                            uint64_t max_cost) {
  const bool by_cost = requests_ < max_requests;
  const auto less = [by_cost](const auto& a, const auto& b) {
    return by_cost ? a.second.cost < b.second.cost : a.second.requests < b.second.requests;
  };
  const auto most = std::max_element(usage_.begin(), usage_.end(), less);
  if (most == usage_.end() || most->first == principal) return {};
  const std::string largest = most->first;
  Usage left = most->second;  // of the largest, after its newest requests
  uint64_t line = cost_;
  std::vector<std::pair<size_t, size_t>> newest;  // level and index
  const Usage own = UsageOf(principal);
  for (size_t level = kPriorityLevels; level-- > 0;) {
    const auto account = accounts(level).find(largest);
    if (account == accounts(level).end()) continue;
    for (size_t index = account->second.waiting.size(); index-- > 0;) {
      if (requests_ - newest.size() < max_requests && line + cost <= max_cost) break;
      const uint64_t frees = account->second.waiting[index]->work.cost;
      --left.requests, left.cost -= frees, line -= frees;
      newest.emplace_back(level, index);
    }
  }
  const bool fits = requests_ - newest.size() < max_requests && line + cost <= max_cost;
  const bool fair = by_cost ? left.cost >= own.cost + cost : left.requests > own.requests;
  std::vector<RequestPtr> taken;
  if (!fits || !fair) return taken;
  for (const auto& [level, index] : newest) taken.push_back(Take(level, largest, index));
  return taken;
}

}  // namespace edgewise::server
