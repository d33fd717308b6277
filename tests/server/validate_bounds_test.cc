// Whatever grows with a text, a chat or an image asks its bounds: between its pieces whether it goes on, and before it
// holds bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <ostream>
#include <string>
#include <variant>

#include "server/validate/validate.h"
#include "tests/model/run_model.h"
#include "tests/server/test_models.h"
#include "tests/support/paths.h"

namespace edgewise::server {
namespace {

// Ends the work when it asks for the piece `last`, or for more than `most` bytes.
class Bounds final : public WorkBounds {
 public:
  explicit Bounds(int last = 1 << 30, uint64_t most = uint64_t{1} << 40) : last_(last), most_(most) {}

  absl::Status Continue() override { return ++asked_ < last_ ? absl::OkStatus() : absl::CancelledError("ends here"); }
  absl::Status Reserve(uint64_t bytes) override {
    if (bytes > most_ - held_) return absl::ResourceExhaustedError("holds no more");
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    return absl::OkStatus();
  }
  void Release(uint64_t bytes) override { held_ -= bytes; }

  int asked() const { return asked_; }
  uint64_t held() const { return held_; }
  uint64_t peak() const { return peak_; }

 private:
  const int last_;
  const uint64_t most_;
  int asked_ = 0;
  uint64_t held_ = 0, peak_ = 0;
};

constexpr size_t kLongText = size_t{256} << 10;

std::string LongText() {
  std::string text;
  while (text.size() < kLongText) text += "to be, or not to be! ";
  return text;
}

struct Case {
  const char* name;
  const char* folder;  // beside the other test data
  std::variant<std::function<void(v1::Sequence&, v1::Input&)>, std::function<void(v1::GenerateRequest&)>> change;
  uint64_t bytes = kLongText;  // it holds at least so many
  int pieces = 4;              // and asks so often
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

void SetText(v1::Sequence& sequence, v1::Input&) {
  sequence.set_text(LongText());
  sequence.set_truncate(v1::HEAD);
}

const Case kCases[] = {
    {"text", "_hugging_face/bert_sequence/1", SetText},
    {"text_of_a_byte_level_model", "_hugging_face/roberta_sequence/1", SetText},
    {"second", "_hugging_face/bert_regression/1",
     [](v1::Sequence& sequence, v1::Input& input) {
       sequence.set_text("a");
       sequence.set_truncate(v1::HEAD);
       SetText(*input.mutable_second(), input);
     }},
    {"text_scored_in_windows", "_hugging_face/gpt2_causal/1",
     [](v1::Sequence& sequence, v1::Input&) { sequence.set_text(LongText()); }},
    {"prompt", "_hugging_face/gpt2_causal/1",
     [](v1::GenerateRequest& request) {
       request.mutable_prompt()->set_text(LongText());
       request.mutable_prompt()->set_truncate(v1::TAIL);
     }},
    {"one_message", "_hugging_face/gpt2_untied/1",
     [](v1::GenerateRequest& request) {
       v1::ChatMessage* message = request.add_messages();
       message->set_role("user");
       message->set_content(LongText());
     }},
    {"many_messages", "_hugging_face/gpt2_untied/1",
     [](v1::GenerateRequest& request) {
       for (int i = 0; i < 1024; ++i) {
         v1::ChatMessage* message = request.add_messages();
         message->set_role(i % 2 == 0 ? "user" : "assistant");
         message->set_content(LongText().substr(0, 256));
       }
     }},
    {"template_arguments", "_hugging_face/gpt2_untied/1",
     [](v1::GenerateRequest& request) {
       v1::ChatMessage* message = request.add_messages();
       message->set_role("user");
       message->set_content("a");
       std::string list = "{\"list\": [1";
       while (list.size() < 100'000) list += ",1";
       request.set_template_arguments(list + "]}");
     },
     uint64_t{4} << 20},
    {"image", "_images/vit_classes/1",
     [](v1::Sequence& sequence, v1::Input&) {
       std::ifstream file(tests::TestdataFolder() + "_images/files/photo.png", std::ios::binary);
       sequence.set_image(std::string(std::istreambuf_iterator<char>(file), {}));
     },
     uint64_t{8} << 20, 1},
};

class ValidateBoundsTest : public ::testing::TestWithParam<Case> {
 protected:
  absl::Status Check(Bounds& bounds) const {
    const Case& c = GetParam();
    if (c.change.index() == 0) {
      v1::PredictRequest message;
      v1::Input* input = message.add_inputs();
      std::get<0>(c.change)(*input->mutable_sequence(), *input);
      return Validate(message, *model_, {}, {}, {}, bounds).status();
    }
    v1::GenerateRequest message;
    message.set_max_new_tokens(1);
    std::get<1>(c.change)(message);
    return Validate(message, *model_, {}, {}, {}, bounds).status();
  }

  const edgewise::testing::LoadedModel model_ =
      edgewise::testing::LoadModel(tests::TestdataFolder() + GetParam().folder);
};

TEST_P(ValidateBoundsTest, WorkEndsWhereItIsToldAndAsksOften) {
  Bounds all;
  const absl::Status unbounded = Check(all);
  EXPECT_NE(unbounded.code(), absl::StatusCode::kCancelled);
  ASSERT_GE(all.asked(), GetParam().pieces);
  for (const int last : {1, (all.asked() + 1) / 2}) {  // words that were seen before are less work
    Bounds bounds(last);
    const absl::Status status = Check(bounds);
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
    EXPECT_EQ(bounds.asked(), last) << "it went on";
    EXPECT_EQ(bounds.held(), 0u);
  }
}

TEST_P(ValidateBoundsTest, BytesAreCountedAndGivenBack) {
  Bounds all;
  (void)Check(all);
  EXPECT_EQ(all.held(), 0u);
  ASSERT_GE(all.peak(), GetParam().bytes);
  for (const uint64_t most : {uint64_t{0}, all.peak() / 2, all.peak() - 1}) {
    Bounds bounds(1 << 30, most);
    const absl::Status status = Check(bounds);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(bounds.held(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Content, ValidateBoundsTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace edgewise::server
