// The text of generated tokens as far as it is certain: whole characters, and no possible beginning of a stop string.
#ifndef EDGEWISE_MODEL_FORWARD_GENERATED_TEXT_H_
#define EDGEWISE_MODEL_FORWARD_GENERATED_TEXT_H_

#include <string>
#include <vector>

namespace edgewise {

class GeneratedText {
 public:
  // `stop`: none empty, valid UTF-8.
  explicit GeneratedText(std::vector<std::string> stop) : stop_(std::move(stop)) {}

  // Adds the bytes of a token and returns the text that became certain, valid UTF-8; bytes that are no character become
  // U+FFFD. A complete stop string ends the text: only the text before it is returned, and nothing afterwards.
  std::string Add(const std::string& bytes);
  // Ends the text and returns the part that was held back.
  std::string Finish();
  bool stopped() const { return stopped_; }

 private:
  void TakeCharacters(bool end);

  const std::vector<std::string> stop_;
  std::string bytes_;  // an incomplete character
  std::string text_;   // whole characters that were not returned yet
  bool stopped_ = false;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_GENERATED_TEXT_H_
