/* Fuzz target: the journal from which `lateen tokenize` resumes. */
#include "data/tokenize_journal.h"
#include "fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int journal = -1;
    static char prefix[96];
    lt_output_state state;
    lt_tokenize_position at;
    if (journal < 0) {
        journal = fuzz_folder_file("s.journal");
        snprintf(prefix, sizeof prefix, "%s/s", fuzz_folder());
    }
    fuzz_write(journal, data, size);
    (void)!lt_tokenize_find_output(&state, &at, prefix, 0x0123456789abcdefu);
    return 0;
}
