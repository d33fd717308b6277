// The text of generated tokens as it may be given away: whole characters, and nothing that may be the begin of a stop
// string.
#ifndef EDGEWISE_MODEL_FORWARD_GENERATED_TEXT_H_
#define EDGEWISE_MODEL_FORWARD_GENERATED_TEXT_H_

#include <string>
#include <vector>

namespace edgewise {

class GeneratedText {
 public:
  // `stop`: none empty, valid UTF-8.
  explicit GeneratedText(std::vector<std::string> stop) : stop_(std::move(stop)) {}

  // Adds the bytes of a token. Returns what became sure, valid UTF-8; bytes that are no character become U+FFFD. Once a
  // stop string is complete: what stood before it, and nothing afterwards.
  std::string Add(const std::string& bytes);
  // The end: what was held back.
  std::string Finish();
  bool stopped() const { return stopped_; }

 private:
  void TakeCharacters(bool end);

  const std::vector<std::string> stop_;
  std::string bytes_;  // the begin of a character
  std::string text_;   // whole characters that were not given yet
  bool stopped_ = false;
};

}  // namespace edgewise

#endif  // EDGEWISE_MODEL_FORWARD_GENERATED_TEXT_H_
