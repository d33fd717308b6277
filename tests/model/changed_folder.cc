#include "tests/model/changed_folder.h"

#include <gtest/gtest.h>

#include <memory>

#include "model/load/load.h"
#include "tests/model/model_builder.h"
#include "tests/model/run_model.h"

namespace edgewise::testing {

void ExpectMessages(const std::string& data, std::span<const ChangedFolder> folders) {
  namespace fs = std::filesystem;
  const std::unique_ptr<Backend> backend = MakeBackend();
  for (size_t i = 0; i < folders.size(); ++i) {
    const auto& [name, change, message] = folders[i];
    const TemporaryFolder temporary;
    const fs::path folder = temporary.path() + "/1";
    fs::copy(data + "/" + name + "/1", folder, fs::copy_options::recursive);
    change(folder);
    const absl::Status status = edgewise::LoadModel(folder, *backend).status();
    if (message.empty()) {
      EXPECT_TRUE(status.ok()) << "case " << i << ": " << status;
      continue;
    }
    const std::string got(status.message());
    EXPECT_NE(got.find(message), std::string::npos)
        << "case " << i << "\ngot:      " << got << "\nexpected: " << message;
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsNotFound(status)) << "case " << i << ": " << status;
    EXPECT_EQ(got.find(temporary.path()), std::string::npos) << got;
  }
}

}  // namespace edgewise::testing
