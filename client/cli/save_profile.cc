#include "client/cli/save_profile.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace edgewise::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxName = 64;  // bytes

bool IsName(const std::string& name) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= kMaxName && name != "none" && std::all_of(name.begin(), name.end(), allowed);
}

absl::StatusOr<Json> ReadConfig(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("--config: cannot read \"", path, "\""));
  Json config = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("--config: \"", path, "\" is not a JSON object"));
  }
  if (config.contains("profiles") && !config["profiles"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("--config: profiles in \"", path, "\" is not an object"));
  }
  return config;
}

}  // namespace

Json OverrideJson(const v1::AttentionOverride& override) {
  Json json = {{"kind", override.kind()}};
  const std::pair<const char*, uint32_t> counts[] = {{"windows", override.windows()},
                                                     {"window_tokens", override.window_tokens()},
                                                     {"keep", override.keep()},
                                                     {"last_layers", override.last_layers()},
                                                     {"block_size", override.block_size()},
                                                     {"stride", override.stride()}};
  for (const auto& [field, count] : counts) {
    if (count > 0) json[field] = count;
  }
  if (override.sigma_size() == 1) json["sigma"] = override.sigma(0);
  if (override.sigma_size() > 1) json["sigma"] = std::vector<double>(override.sigma().begin(), override.sigma().end());
  if (!override.pattern().empty()) json["pattern"] = override.pattern();
  if (override.has_width()) json["width"] = override.width();
  if (override.has_threshold()) json["threshold"] = override.threshold();
  return json;
}

Json ProfileJson(const Setting& setting, const std::string& keep_edges) {
  Json json = Json::object();
  if (setting.cap) json["max_density"] = *setting.cap;
  if (setting.cap && !keep_edges.empty()) json["keep"] = keep_edges;
  if (setting.samples > 1) json["samples"] = setting.samples;
  if (setting.override) json["override"] = OverrideJson(*setting.override);
  return json;
}

absl::Status CheckProfile(const std::string& config, const std::string& name) {
  if (!IsName(name)) {
    return absl::InvalidArgumentError(absl::StrCat("--save is \"", name, "\"; expected 1 to ", kMaxName,
                                                   " characters of a-z, 0-9, _ and -, but not \"none\""));
  }
  const absl::StatusOr<Json> json = ReadConfig(config);
  if (!json.ok()) return json.status();
  if (json->contains("profiles") && json->at("profiles").contains(name)) {
    return absl::InvalidArgumentError(absl::StrCat("--save is \"", name, "\"; \"", config,
                                                   "\" has this profile already; choose another name, or remove it"));
  }
  return absl::OkStatus();
}

absl::Status SaveProfile(const std::string& config, const std::string& name, const Json& profile) {
  if (absl::Status status = CheckProfile(config, name); !status.ok()) return status;
  absl::StatusOr<Json> json = ReadConfig(config);
  if (!json.ok()) return json.status();
  (*json)["profiles"][name] = profile;
  const std::string next = config + ".new";
  std::error_code error;
  {
    std::ofstream file(next, std::ios::trunc);
    file << json->dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    file.flush();
    if (!file) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) std::filesystem::permissions(next, std::filesystem::status(config).permissions(), error);
  if (!error) std::filesystem::rename(next, config, error);
  if (!error) return absl::OkStatus();
  std::error_code ignored;
  std::filesystem::remove(next, ignored);
  return absl::FailedPreconditionError(absl::StrCat("--save: cannot write \"", config, "\": ", error.message()));
}

}  // namespace edgewise::cli
