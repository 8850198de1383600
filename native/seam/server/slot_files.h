// Files of a slot's tokens and rows (action=save and restore): for the patch `slot-files`. Decoding thread.
#pragma once

#include <string>

namespace edgekv_server {

// A file that is being saved: it is written under another name, and gets its own when it is whole and sealed.
class slot_file {
  public:
    // changes the path to the one to write to
    explicit slot_file(std::string & path);
    ~slot_file();
    slot_file(const slot_file &)             = delete;
    slot_file & operator=(const slot_file &) = delete;

    // Seals n_bytes: their number and checksum follow them. Returns why it cannot, or "".
    std::string seal(size_t n_bytes);

  private:
    std::string name;
    std::string aside;
};

// why the file cannot be restored, or "": only a file that is whole, as it was sealed, may touch cells
std::string broken_slot_file(const std::string & path);

}  // namespace edgekv_server
