/* copy.c: copy a file between any two of folders, object stores, web servers and the model hub:
 * build/examples/copy s3://bucket/key file */
#include <stdio.h>

#include "lateen/copy.h"

int main(int argc, char **argv) {
    lt_copy_report r;
    if (argc != 3 || lt_copy(argv[1], argv[2], NULL, &r) != LT_OK) {
        fprintf(stderr, "%s\n", argc != 3 ? "usage: copy SOURCE TARGET" : lt_error_message());
        return 1;
    }
    printf("%lld files, %lld bytes, checked by %s\n", (long long)r.n_files,
           (long long)r.total_bytes, r.checked_by);
    return 0;
}
