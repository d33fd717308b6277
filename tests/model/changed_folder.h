// Folders of the test data with something changed, and what loading them says.
#ifndef EDGEWISE_TESTS_MODEL_CHANGED_FOLDER_H_
#define EDGEWISE_TESTS_MODEL_CHANGED_FOLDER_H_

#include <filesystem>
#include <functional>
#include <span>
#include <string>

namespace edgewise::testing {

using Change = std::function<void(const std::filesystem::path& folder)>;

struct ChangedFolder {
  std::string name;
  Change change;
  std::string message;  // a part of the error; empty: it loads
};

// Loads copies of <data>/<name>/1, changed. No error tells where the folder is: clients read it.
void ExpectMessages(const std::string& data, std::span<const ChangedFolder> folders);

}  // namespace edgewise::testing

#endif  // EDGEWISE_TESTS_MODEL_CHANGED_FOLDER_H_
