// A decoder's layers in one call (Backend::Decode): the numbers of the operations one by one, and the same bytes for a
// row whatever other rows there are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/kernels/decoder_case.h"
#include "tests/kernels/devices.h"

namespace edgewise {
namespace {

using testing::DecodedText;
using testing::DecoderShape;
using testing::kVocabulary;
using testing::PlacedDecoder;

class DecoderStepTest : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && !GetParam().bf16) GTEST_SKIP() << "decoders are of precision bf16";
  }
  std::vector<float> Decode(PreparedDecoder& decoder, const std::vector<DecodedRow>& rows) {
    const auto wanted = std::count_if(rows.begin(), rows.end(), [](const DecodedRow& row) { return row.predicts; });
    const Buffer logits = *backend_->Allocate(std::max<int64_t>(1, wanted) * kVocabulary);
    const absl::Status status = backend_->Decode(decoder, rows, logits.AsMatrix(wanted, kVocabulary));
    EXPECT_TRUE(status.ok()) << status;
    std::vector<float> host = testing::Fetch(*backend_, logits);
    host.resize(static_cast<size_t>(wanted * kVocabulary));
    return host;
  }
  // A text's logits are the CPU's; 60 tokens in the first step, `rows` in the others.
  void ExpectAgreement(const DecoderShape& shape, int32_t tokens, int32_t rows) {
    SCOPED_TRACE(shape.name);
    const auto cpu = *CreateBackend({});
    PlacedDecoder of_cpu(*cpu, shape), of_gpu(*backend_, shape);
    const auto decoder = *backend_->PrepareDecoder(of_gpu.decoder);
    ASSERT_NE(decoder, nullptr);
    const DecodedText text(*backend_, shape, tokens, 3);
    std::vector<float> got;
    for (int32_t first = 0, next = 60; first < tokens; first = next, next += rows) {
      std::vector<DecodedRow> some;
      for (int32_t token = first; token < next; ++token) some.push_back(text.Row(token, true));
      const std::vector<float> logits = Decode(*decoder, some);
      got.insert(got.end(), logits.begin(), logits.end());
    }
    const std::vector<float> want = of_cpu.Pass(text.text);
    ASSERT_EQ(got.size(), want.size());
    double squares = 0.0, errors = 0.0;
    for (size_t i = 0; i < want.size(); ++i) {
      squares += static_cast<double>(want[i]) * want[i];
      errors += std::pow(static_cast<double>(got[i]) - want[i], 2);
    }
    EXPECT_LT(std::sqrt(errors / squares), 0.02);
    EXPECT_GT(errors, 0.0);
  }
};
EDGEWISE_TEST_ON(Gpus, DecoderStepTest);

const DecoderShape kDecoderShapes[] = {{"gpt2", 3, 3, 16, 48, 96, false},
                                       {"llama", 4, 2, 32, 64, 104, true},
                                       {"windows", 2, 1, 8, 40, 64, true, 9},
                                       {"wide heads", 1, 1, 136, 24, 4104, false}};

TEST_P(DecoderStepTest, AgreesWithTheOperationsOneByOne) {
  for (const DecoderShape& shape : kDecoderShapes) ExpectAgreement(shape, 70, 5);
}

// A warp has a second group of keys from 257 on.
TEST_P(DecoderStepTest, AgreesWhereAWarpHasSeveralGroupsOfKeys) {
  ExpectAgreement({"many keys", 2, 1, 16, 24, 32, true, AllPairs::kFar, 1}, 300, 60);
}

TEST_P(DecoderStepTest, ARowHasTheSameBytesAmongAnyRows) {
  for (const DecoderShape& shape : kDecoderShapes) {
    SCOPED_TRACE(shape.name);
    PlacedDecoder placed(*backend_, shape);
    const auto decoder = *backend_->PrepareDecoder(placed.decoder);
    std::vector<float> alone;  // token by token
    const DecodedText text(*backend_, shape, 67, 5);
    for (int32_t token = 0; token < 67; ++token) {
      const std::vector<float> logits = Decode(*decoder, {text.Row(token, true)});
      alone.insert(alone.end(), logits.begin(), logits.end());
    }
    // Several tokens at once behind those of other texts, whose logits nobody wants.
    const DecodedText again(*backend_, shape, 67, 5);
    for (int32_t first = 0, rows = 0; first < 67; first += rows) {
      rows = std::min(67 - first, first == 0 ? 33 : first < 60 ? 17 : 2);
      const DecodedText others(*backend_, shape, 64 - rows, 11);
      std::vector<DecodedRow> all;
      for (int32_t token = 0; token < 64 - rows; ++token) all.push_back(others.Row(token, false));
      for (int32_t token = first; token < first + rows; ++token) all.push_back(again.Row(token, token % 3 == 0));
      const std::vector<float> got = Decode(*decoder, all);
      size_t row = 0;
      for (int32_t token = first; token < first + rows; ++token) {
        if (token % 3 != 0) continue;
        EXPECT_TRUE(testing::SameBytes(std::span(got).subspan(row++ * kVocabulary, kVocabulary),
                                       std::span(alone).subspan(token * kVocabulary, kVocabulary)))
            << token;
      }
    }
  }
}

TEST_P(DecoderStepTest, OtherShapesAreNotTaken) {
  PlacedDecoder placed(*backend_, {"narrow", 1, 1, 12, 20, 44, false});  // a product of 44 columns, not of whole words
  EXPECT_EQ(*backend_->PrepareDecoder(placed.decoder), nullptr);
}

}  // namespace
}  // namespace edgewise
