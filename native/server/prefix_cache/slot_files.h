// Files of a slot's tokens and rows (action=save and restore): for the patch `prefix-cache`. Each key has files of its own, whatever cache_salt a request
// names. Decoding thread.
#pragma once

#include <string>

namespace edgekv_server {

// A file that is being saved: it is written under another name, and gets its own when it is whole and sealed.
class saved_slot {
  public:
    // changes the path to the one to write to; the client calls it `shown`. space: the request's namespace
    saved_slot(std::string & path, const std::string & shown, const std::string & space);
    ~saved_slot();
    saved_slot(const saved_slot &)             = delete;
    saved_slot & operator=(const saved_slot &) = delete;

    // Seals n_bytes: their number and checksum follow them. Returns why it cannot, or "".
    std::string seal(size_t n_bytes);

  private:
    std::string path;
    std::string aside;
    std::string shown;
};

// Changes the path to the one to read. Why the file cannot be restored, or "": only a file that is whole, as it was sealed, may touch cells.
std::string broken_slot_file(std::string & path, const std::string & shown, const std::string & space);

}  // namespace edgekv_server
