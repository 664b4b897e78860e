/* lateen/base.h: a function fails with a code and a message that names the object. */
#include <stdio.h>

#include "lateen/base.h"
#include "lateen/model.h"

int main(void) {
    lt_model *m = NULL;
    const lt_err err = lt_model_open(&m, "no-such-model.gguf", NULL);
    printf("lateen %s: %s: %s\n", lt_version(), lt_err_text(err), lt_error_message());
    return err == LT_ERR_NOT_FOUND ? 0 : 1;
}
