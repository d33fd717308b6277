#include "model/checkpoint/hugging_face/stored_numbers.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

namespace edgewise::hugging_face {
namespace {

float FromHalf(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1F, fraction = bits & 0x3FF;
  if (exponent == 0) {  // subnormal or zero
    const float size = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -size : size;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

float FromBrain(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float FromDouble(double number) { return static_cast<float>(number); }  // to the nearest

float FromFloat(float number) { return number; }

template <typename Stored>
std::vector<float> Converted(std::span<const char> bytes, float (*to_float)(Stored)) {
  std::vector<float> values(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, &bytes[i * sizeof stored], sizeof stored);
    values[i] = to_float(stored);
  }
  return values;
}

}  // namespace

std::span<const float> StoredNumbers(const Shards::Tensor& tensor, std::deque<std::vector<float>>& converted) {
  const std::span<const char> bytes = tensor.file->Bytes(*tensor.entry);
  const std::string& dtype = tensor.entry->dtype;
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % alignof(float) == 0;
  if (dtype == "F32" && aligned) return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
  return converted.emplace_back(dtype == "F64"    ? Converted(bytes, FromDouble)
                                : dtype == "F32"  ? Converted(bytes, FromFloat)
                                : dtype == "BF16" ? Converted(bytes, FromBrain)
                                                  : Converted(bytes, FromHalf));
}

}  // namespace edgewise::hugging_face
