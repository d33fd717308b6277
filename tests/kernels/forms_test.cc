// Rows in the forms that products and attention read: the bytes of float32 rows, whoever writes and reads them. And the
// operations that end a sublayer: the bytes of the operations that they are made of. On a device without such forms
// they are these operations.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>

#include "tests/kernels/device_matrix.h"

namespace edgewise {
namespace {

using testing::Case;
using testing::DeviceMatrix;
using testing::Random;
using testing::SameBytes;
using testing::Shape;

struct Widths {
  int64_t in, out;
};
// Whole vectors, less, slices of several lengths, and more columns than a norm holds in registers.
constexpr Widths kWidths[] = {{64, 64}, {100, 52}, {67, 19}, {24, 100}, {264, 272}, {40, 1032}};

class FormsTest : public testing::DeviceTest {
 protected:
  std::unique_ptr<LinearWeights> Weights(int64_t in, int64_t out, uint32_t seed,
                                         Activation activation = Activation::kNone) const {
    const float unit = 1.0f / std::sqrt(static_cast<float>(in));
    return *backend_->PrepareLinear(Random(out * in, seed, unit), Random(out, seed + 1), out, in, activation);
  }
  // Room for rows in a form. Columns of zeros begin as NaN.
  Buffer Room(Form form, int64_t rows, int64_t columns) const {
    return testing::Place(*backend_,
                          std::vector<float>(static_cast<size_t>(rows * backend_->RowFloats(form, columns)), NAN));
  }
  Matrix View(const Buffer& room, Form form, int64_t rows, int64_t columns) const {
    return {room.data(), rows, columns, backend_->RowFloats(form, columns), form};
  }
  // x W^T + b, of float32 rows or others.
  std::vector<float> ProductOf(const LinearWeights& weights, ConstMatrix x, int64_t out) const {
    const Buffer y = *backend_->Allocate(x.rows * out);
    EXPECT_TRUE(backend_->Linear(weights, x, y.AsMatrix(x.rows, out), false).ok());
    return testing::Fetch(*backend_, y);
  }
};
EDGEWISE_TEST_ON(Devices, FormsTest);

TEST_P(FormsTest, AProductReadsWhatAnotherWroteForIt) {
  for (const auto& [in, out] : kWidths) {
    for (const int64_t rows : {1, 21, Sized(130, 67)}) {
      SCOPED_TRACE(std::to_string(in) + " to " + std::to_string(out) + ", rows " + std::to_string(rows));
      const auto first = Weights(in, out, 1, Activation::kGelu), second = Weights(out, 24, 3);
      const DeviceMatrix x(*backend_, Random(rows * in, 5), rows, in);
      const Form form = backend_->OperandForm(out);
      const Buffer plain = *backend_->Allocate(rows * out), room = Room(form, rows, out);
      ASSERT_TRUE(backend_->Linear(*first, x.view(), plain.AsMatrix(rows, out), false).ok());
      ASSERT_TRUE(backend_->Linear(*first, x.view(), View(room, form, rows, out), false).ok());
      EXPECT_TRUE(SameBytes(ProductOf(*second, View(room, form, rows, out), 24),
                            ProductOf(*second, plain.AsMatrix(rows, out), 24)));
    }
  }
}

// `gate`: of the feed-forward; a product alone: none, and no `wide`.
struct Sublayer {
  int64_t wide = 0;
  std::optional<Activation> gate;
};

TEST_P(FormsTest, TheEndOfASublayerHasTheBytesOfItsOperations) {
  for (const auto& [in, out] : kWidths) {
    for (const Sublayer& of : {Sublayer{}, Sublayer{136, std::nullopt}, Sublayer{52, Activation::kSilu}}) {
      for (const int64_t rows : {1, Sized(130, 67)}) {
        for (const bool layer_norm : {true, false}) {
          SCOPED_TRACE(std::to_string(in) + " to " + std::to_string(out) + " by " + std::to_string(of.wide) +
                       ", rows " + std::to_string(rows) + (layer_norm ? " layer" : " RMS"));
          const auto up = Weights(in, of.gate.has_value() ? 2 * of.wide : std::max<int64_t>(of.wide, 1), 1,
                                  of.gate.has_value() ? Activation::kNone : Activation::kGelu);
          const auto down = Weights(of.wide > 0 ? of.wide : in, out, 3), next = Weights(out, 12, 5);
          const Buffer scale = testing::Place(*backend_, Random(out, 7)),
                       shift = testing::Place(*backend_, Random(out, 8));
          const RowNorm norm = {scale.data(), layer_norm ? shift.data() : nullptr, 1e-5f};
          const std::vector<float> before = Random(rows * out, 9);
          const DeviceMatrix x(*backend_, Random(rows * in, 10), rows, in);
          const DeviceMatrix want(*backend_, before, rows, out), normed(*backend_, before, rows, out);
          if (of.wide == 0) {
            ASSERT_TRUE(backend_->Linear(*down, x.view(), want.view(), true).ok());
          } else if (of.gate.has_value()) {
            ASSERT_TRUE(backend_->GatedFeedForward(*up, *down, *of.gate, x.view(), want.view()).ok());
          } else {
            ASSERT_TRUE(backend_->FeedForward(*up, *down, x.view(), want.view()).ok());
          }
          ASSERT_TRUE((layer_norm ? backend_->LayerNorm(want.view(), scale.data(), shift.data(), 1e-5f, normed.view())
                                  : backend_->RmsNorm(want.view(), scale.data(), 1e-5f, out, normed.view()))
                          .ok());
          const Form form = backend_->OperandForm(out);
          for (const bool in_place : {false, true}) {
            const DeviceMatrix sum(*backend_, before, rows, out), of_sum(*backend_, before, rows, out);
            const Buffer room = Room(form, rows, out);
            Residual to = {sum.view(), norm, in_place ? sum.view() : of_sum.view(), {}};
            if (form != Form::kFloat32) to.operand = View(room, form, rows, out);
            ASSERT_TRUE((of.wide == 0 ? backend_->AddLinear(*down, x.view(), to)
                                      : backend_->AddFeedForward(*up, *down, of.gate, x.view(), to))
                            .ok());
            if (!in_place) {
              EXPECT_TRUE(SameBytes(sum.Host(), want.Host()));
            }
            EXPECT_TRUE(SameBytes(in_place ? sum.Host() : of_sum.Host(), normed.Host()));
            if (form == Form::kFloat32) continue;
            EXPECT_TRUE(SameBytes(ProductOf(*next, to.operand, 12), ProductOf(*next, normed.view(), 12)));
          }
        }
      }
    }
  }
}

// Queries, keys and values as a product rounds them for attention, and what a product reads of its output.
TEST_P(FormsTest, AttentionReadsAndWritesThemWithTheSameBytes) {
  Shape shape;
  shape.lengths = {70, 33};
  shape.head_dim = 64;
  shape.one_matrix = true;
  const auto graph = [&] {
    Case drawn(shape);
    drawn.AddProblems(DrawnRows{});
    drawn.AskForAll();
    return testing::GraphsOf(Run(drawn));
  }();
  for (const bool given : {false, true}) {
    Case made(shape);
    made.AddProblems(AllPairs{});
    for (size_t p = 0; given && p < made.problems.size(); ++p) made.problems[p].pattern = ExplicitEdges{&graph[p]};
    const std::vector<float> want = Run(made).out;
    const auto forms = backend_->FormsOfAttention(made.out_columns());
    testing::PlacedCase placed(*backend_, made);
    AttentionInputs& inputs = placed.inputs;
    const int64_t rows = inputs.q.rows, columns = inputs.q.columns, all = 3 * columns;
    std::vector<float> identity(static_cast<size_t>(all * all));
    for (int64_t i = 0; i < all; ++i) identity[i * all + i] = 1.0f;
    const auto copy = *backend_->PrepareLinear(identity, {}, all, all, Activation::kNone);
    const Buffer room = Room(forms.inputs, rows, all), out = Room(forms.out, made.out_rows, made.out_columns());
    const ConstMatrix from(inputs.q.data, rows, all, inputs.q.stride);
    const Matrix taken = View(room, forms.inputs, rows, all);
    ASSERT_TRUE(backend_->Linear(*copy, from, taken, false).ok());
    inputs.q = taken.Columns(0, columns);
    inputs.k = taken.Columns(columns, columns);
    inputs.v = taken.Columns(2 * columns, columns);
    const Matrix to = View(out, forms.out, made.out_rows, made.out_columns());
    std::vector<EdgeCap> caps;
    ASSERT_TRUE(backend_->Attend(inputs, made.problems, caps, to).ok());
    const auto next = Weights(made.out_columns(), 12, 3);
    const DeviceMatrix plain(*backend_, want, made.out_rows, made.out_columns());
    EXPECT_TRUE(SameBytes(ProductOf(*next, to, 12), ProductOf(*next, plain.view(), 12))) << given;
  }
}

}  // namespace
}  // namespace edgewise
