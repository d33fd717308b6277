#include "server/base/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace edgewise::server {
namespace {

// The id among the notes of one segment, or empty. Names and ids are padded to 4 bytes.
std::string FindId(absl::string_view notes) {
  ElfW(Nhdr) note;
  while (notes.size() >= sizeof(note)) {
    std::memcpy(&note, notes.data(), sizeof(note));
    notes.remove_prefix(sizeof(note));
    const size_t name = (size_t{note.n_namesz} + 3) & ~size_t{3}, id = (size_t{note.n_descsz} + 3) & ~size_t{3};
    if (name > notes.size() || id > notes.size() - name) return "";
    if (note.n_type == NT_GNU_BUILD_ID && notes.substr(0, note.n_namesz) == absl::string_view("GNU", 4)) {
      return absl::BytesToHexString(notes.substr(name, note.n_descsz));
    }
    notes.remove_prefix(name + id);
  }
  return "";
}

// Collects the ids of the executable, whose name is empty and which comes first, and of the CUDA library.
int AddIds(dl_phdr_info* object, size_t, void* ids) {
  const absl::string_view name(object->dlpi_name);
  if (!name.empty() && !absl::StrContains(name, "libedgewise_cuda")) return 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    // The loader gives numbers. NOLINTNEXTLINE(performance-no-int-to-ptr)
    const auto* const notes = reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
    const std::string id = FindId({notes, segment.p_memsz});
    if (id.empty()) continue;
    auto* found = static_cast<std::string*>(ids);
    absl::StrAppend(found, found->empty() ? "" : "+", id);
    break;
  }
  return 0;
}

}  // namespace

const std::string& BuildId() {
  static const std::string& ids = *[] {
    auto* found = new std::string();
    dl_iterate_phdr(AddIds, found);
    return found;
  }();
  return ids;
}

}  // namespace edgewise::server
