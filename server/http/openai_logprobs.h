// The log-probabilities of a choice's tokens in the shapes of OpenAI's API.
#ifndef EDGEWISE_SERVER_HTTP_OPENAI_LOGPROBS_H_
#define EDGEWISE_SERVER_HTTP_OPENAI_LOGPROBS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "edgewise/v1/inference.pb.h"
#include "server/http/json_out.h"

namespace edgewise::server {

// The name of a token there: its bytes, where these are UTF-8; else "bytes:\xe2\x80"; without bytes "token_id:5".
std::string TokenName(int32_t token_id, const std::string& bytes);

// The tokens of one choice. One thread at a time.
class Logprobs {
 public:
  // `chat`: {"content", "refusal"}; else {"tokens", "token_logprobs", "top_logprobs", "text_offset"}.
  Logprobs(bool chat, bool wanted) : chat_(chat), wanted_(wanted) {}

  bool wanted() const { return wanted_; }
  void Add(const v1::GenerateResponse& token);
  void Add(const v1::TokenScore& token);  // of a prompt; not of a chat
  // Puts those before these.
  void Prepend(const Logprobs& before);
  // The value of "logprobs" of the tokens that were added since the last call; null where none is wanted.
  void Write(JsonOut& json);
  uint64_t bytes() const {
    return items_.size() + logprobs_.size() + tops_.size() + offsets_.size() * sizeof(uint64_t);
  }

 private:
  void AddOfChat(const v1::GenerateResponse& token);
  template <typename Token>
  void AddOfText(const Token& token, bool known);

  const bool chat_, wanted_;
  // Lists of JSON values, without brackets: of a chat its content; else the tokens, and the lists beside them.
  std::string items_, logprobs_, tops_;
  std::vector<uint64_t> offsets_;  // of the tokens in the text, in characters
  uint64_t characters_ = 0;        // of all tokens so far
};

}  // namespace edgewise::server

#endif  // EDGEWISE_SERVER_HTTP_OPENAI_LOGPROBS_H_
