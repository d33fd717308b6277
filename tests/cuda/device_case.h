// A case of attention (tests/kernels/attention_cases.h) in device memory, as the kernels read it, so that they are
// tested by themselves. Drawn rows and explicit edges only.
#ifndef EDGEWISE_TESTS_CUDA_DEVICE_CASE_H_
#define EDGEWISE_TESTS_CUDA_DEVICE_CASE_H_

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/cuda/attention/call.h"
#include "kernels/cuda/attention/items.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/attention/rounds.h"
#include "kernels/draw/events.h"
#include "kernels/reference/reference.h"
#include "tests/kernels/attention_cases.h"

namespace edgewise::cuda::testing {

// Copies of arrays of the host, in device memory; owns it.
class DeviceCopies {
 public:
  template <typename T>
  T* Put(std::span<const T> host) {
    if (host.empty()) return nullptr;
    void* pointer = nullptr;
    EXPECT_EQ(cudaMalloc(&pointer, host.size_bytes()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(pointer, host.data(), host.size_bytes(), cudaMemcpyHostToDevice), cudaSuccess);
    blocks_.emplace_back(pointer, [](void* block) { cudaFree(block); });
    return static_cast<T*>(pointer);
  }
  template <typename T>
  T* Put(const std::vector<T>& host) {
    return Put(std::span<const T>(host));
  }

 private:
  std::vector<std::shared_ptr<void>> blocks_;
};

// Waits for the device.
template <typename T>
std::vector<T> Get(const T* pointer, int64_t count) {
  std::vector<T> host(static_cast<size_t>(count));
  if (host.empty()) return host;
  EXPECT_EQ(cudaMemcpy(host.data(), pointer, host.size() * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  return host;
}

using edgewise::testing::kLaws;

struct DeviceCase {
  // `caps`: as in the call, without what they draw. Their `undrawn` is counted here.
  explicit DeviceCase(const edgewise::testing::Case& host, std::vector<DeviceCap> caps = {});
  DeviceCase(const DeviceCase&) = delete;

  std::vector<DeviceCap> Caps() const { return Get(call.caps, call.num_caps); }
  std::vector<DeviceHeadCounts> Counts() const { return Get(call.counts, num_counts); }

  // Settles the caps, which begin as they were given.
  void Select() {
    const size_t bytes = first_caps_.size() * sizeof(DeviceCap);
    EXPECT_EQ(cudaMemcpy(call.caps, first_caps_.data(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
    DeviceCopies scratch;
    // Scratch comes as it is.
    const std::vector<unsigned char> dirt(static_cast<size_t>(CapScratchBytes(call.num_caps)), 0xA5);
    const DrawPass pass = [&](Draws draws, bool again, const UseRound& use) {
      return rounds.ForDrawn(draws, again, use);
    };
    EXPECT_EQ(SelectKept(nullptr, call, true, scratch.Put(dirt), pass), cudaSuccess);
  }
  // Draws all edges, drops those that caps drop, and counts the others, once.
  void Keep() {
    if (std::exchange(kept_, true)) return;
    EXPECT_EQ(rounds.ForKept({}), cudaSuccess);
  }

  const std::shared_ptr<Device> device = *Device::Open(0);
  DeviceCopies memory;
  DeviceCall call = {};
  DrawRounds rounds;
  std::vector<DeviceProblem> problems;
  int64_t num_counts = 0;
  RowItems items;

 private:
  std::vector<DeviceCap> first_caps_;
  bool kept_ = false;
};

inline DeviceCap CapOf(uint64_t max_edges, uint64_t* ledger = nullptr, BudgetShare share = {}) {
  DeviceCap cap = {};
  cap.max_edges = max_edges;
  cap.ledger = ledger;
  cap.share = share;
  return cap;
}

inline DeviceCase::DeviceCase(const edgewise::testing::Case& host, std::vector<DeviceCap> caps) {
  const AttentionInputs& inputs = host.inputs;
  const float* data = memory.Put(host.data);
  call.q = data + (inputs.q.data - host.data.data());
  call.k = data + (inputs.k.data - host.data.data());
  call.v = data + (inputs.v.data - host.data.data());
  call.q_stride = inputs.q.stride;
  call.k_stride = inputs.k.stride;
  call.v_stride = inputs.v.stride;
  call.num_heads = inputs.num_heads;
  call.head_dim = inputs.head_dim;
  call.value_dim = inputs.value_dim > 0 ? inputs.value_dim : inputs.head_dim;
  call.scale = inputs.scale;
  if (inputs.distance_bias != nullptr) {
    call.distance_bias = memory.Put(
        std::span(inputs.distance_bias, static_cast<size_t>(inputs.num_heads) * (2 * inputs.distance_span - 1)));
    call.distance_span = inputs.distance_span;
  }
  call.x = memory.Put(host.x);
  call.y = memory.Put(host.y);
  call.query_bound = memory.Put(host.query_bound);
  call.key_bound = memory.Put(host.key_bound);
  call.membership_rows = inputs.memberships.rows;
  call.rank = inputs.memberships.rank;
  call.out_stride = static_cast<int64_t>(inputs.num_heads) * call.value_dim;
  call.out = memory.Put(std::vector<float>(static_cast<size_t>(host.out_rows * call.out_stride), NAN));

  for (const AttentionProblem& problem : host.problems) {
    const auto index = static_cast<int32_t>(problems.size());
    DeviceProblem of = {};
    of.first_row = problem.first_row;
    of.query_row = problem.first_row + problem.query_shift;
    of.out_row = problem.out_row;
    of.tokens = problem.tokens;
    of.first_query = problem.first_query;
    const std::span<const int32_t> positions(problem.positions, problem.positions == nullptr ? 0 : problem.tokens);
    if (!positions.empty() && positions.back() != problem.tokens - 1) of.positions = memory.Put(positions);
    of.cap = problem.cap;
    of.count = std::exchange(num_counts, num_counts + inputs.num_heads);
    of.event_head = -1;
    of.wants_graph = true;
    if (problem.bias != nullptr) {
      const size_t pairs = static_cast<size_t>(problem.bias->length) * problem.bias->length;
      of.bias_length = problem.bias->length;
      if (problem.bias->values != nullptr) of.bias_values = memory.Put(std::span(problem.bias->values, pairs));
      if (problem.bias->buckets != nullptr) of.bias_buckets = memory.Put(std::span(problem.bias->buckets, pairs));
      if (problem.bias->table != nullptr) {
        of.bias_table = memory.Put(std::span(problem.bias->table, static_cast<size_t>(inputs.num_heads) * 256));
      }
    }
    if (const auto* drawn = std::get_if<DrawnRows>(&problem.pattern)) {
      of.kind = PatternKind::kDrawn;
      of.law = drawn->law;
      of.self_loops = drawn->self_loops;
      of.exploration = drawn->exploration;
      of.local_window = drawn->local_window;
      of.key = drawn->key;
    } else {
      of.kind = PatternKind::kGiven;
      const auto* given = std::get_if<ExplicitEdges>(&problem.pattern);
      bool multi = false;
      std::vector<int64_t> row_offsets;
      std::vector<int32_t> keys, multiplicity;
      for (int head = 0; head < inputs.num_heads; ++head) {
        if (problem.cap >= 0) caps[problem.cap].undrawn += reference::DrawEdges(inputs, problem, head).size();
        if (given == nullptr) continue;
        const HeadEdges& edges = (*given->heads)[head];
        for (int64_t offset : edges.row_offsets) row_offsets.push_back(static_cast<int64_t>(keys.size()) + offset);
        keys.insert(keys.end(), edges.keys.begin(), edges.keys.end());
        multi |= !edges.multiplicity.empty();
        multiplicity.insert(multiplicity.end(), edges.multiplicity.begin(), edges.multiplicity.end());
        multiplicity.resize(keys.size(), 1);
      }
      of.row_offsets = memory.Put(row_offsets);
      of.given_keys = memory.Put(keys);
      of.multiplicity = multi ? memory.Put(multiplicity) : nullptr;
      if (given == nullptr) of.kind = PatternKind::kTiles;
    }
    if (of.kind != PatternKind::kTiles) AddRowItems(problem, index, inputs.num_heads, of, items);
    if (of.kind == PatternKind::kDrawn) call.most_tokens = std::max(call.most_tokens, of.tokens);
    problems.push_back(of);
  }
  for (DeviceCap& cap : caps) {
    cap.cut = {~uint64_t{0}, ~uint64_t{0}, CapRule::kRandom};
    cap.tau = 1.0;
    cap.limit = kEventAgeOne;
  }
  call.multi = call.special = true;  // there is room for it
  call.problems = memory.Put(problems);
  call.num_problems = static_cast<int32_t>(problems.size());
  call.row_items = memory.Put(items.rows);
  call.num_row_items = static_cast<uint32_t>(items.rows.size());
  call.dense_items = memory.Put(items.dense);
  call.num_dense_items = std::ssize(items.dense);
  call.full = memory.Put(std::vector<int32_t>(1));
  call.caps = memory.Put(caps);
  first_caps_ = caps;
  call.num_caps = static_cast<int32_t>(caps.size());
  call.counts = memory.Put(std::vector<DeviceHeadCounts>(static_cast<size_t>(num_counts)));
  EXPECT_TRUE(rounds.Start(*device, problems, int64_t{1} << 40, call).ok());
  call = rounds.call();
}

// Edges of a problem, its heads one behind the other.
struct Listed {
  std::vector<int64_t> row_offsets;
  std::vector<int32_t> keys, multiplicity;
};

// The kept edges of a drawn problem.
inline Listed List(DeviceCase& device, int32_t problem) {
  device.Keep();
  const int64_t heads = device.call.num_heads, queries = device.problems[problem].tokens;
  DeviceCopies memory;
  int32_t* counts = memory.Put(std::vector<int32_t>(static_cast<size_t>(heads * queries), -1));
  EXPECT_EQ(CountRowEdges(nullptr, device.call, problem, counts), cudaSuccess);
  const std::vector<int32_t> rows = Get(counts, heads * queries);
  Listed listed;
  int64_t sum = 0;
  for (int64_t h = 0; h < heads; ++h) {
    listed.row_offsets.push_back(sum);
    for (int64_t i = 0; i < queries; ++i) listed.row_offsets.push_back(sum += rows[h * queries + i]);
  }
  const std::vector<int32_t> none(static_cast<size_t>(sum), -1);
  int32_t* keys = memory.Put(none);
  int32_t* multiplicity = memory.Put(none);
  EXPECT_EQ(ListEdges(nullptr, device.call, problem, memory.Put(listed.row_offsets), keys, multiplicity), cudaSuccess);
  listed.keys = Get(keys, sum);
  listed.multiplicity = Get(multiplicity, sum);
  return listed;
}

}  // namespace edgewise::cuda::testing

#endif  // EDGEWISE_TESTS_CUDA_DEVICE_CASE_H_
