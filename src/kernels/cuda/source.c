/* source.c: see source.h. The build writes all texts one after another as "name\0text\0 ... \0"
 * (rules.mk). */
#include "kernels/cuda/source.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/file.h"

#define TEXT_BYTES_MAX ((size_t)1 << 20)

extern const char lt_kernel_text_begin[];

/* The name that follows p's text; NULL after the last. */
static const char *next_name(const char *p) {
    p += strlen(p) + 1;
    p += strlen(p) + 1;
    return *p != '\0' ? p : NULL;
}

const char *lt_source_name(size_t i) {
    const char *p = lt_kernel_text_begin;
    for (; p != NULL && i > 0; i--) {
        p = next_name(p);
    }
    return p;
}

static const char *embedded_text(const char *name) {
    const char *p = lt_kernel_text_begin;
    while (p != NULL && strcmp(p, name) != 0) {
        p = next_name(p);
    }
    return p != NULL ? p + strlen(p) + 1 : NULL;
}

/* Headers that the host includes, too, are named by their path from src/ (common/args.h). */
static const char *below_root(const char *name) {
    static const char root[] = "kernels/cuda/";
    return strncmp(name, root, sizeof root - 1) == 0 ? name + sizeof root - 1 : name;
}

/* Append one text to *s. */
static lt_err part_add(lt_source *s, const char *name, const char *wanted_by) {
    const char *dir = getenv("LATEEN_KERNEL_DIR");
    char *copy = NULL;
    if (s->n_parts == LT_SOURCE_MAX_FILES) {
        LT_FAIL(LT_ERR_LIMIT, "kernel %s includes more than %d files", s->name[0],
                LT_SOURCE_MAX_FILES);
    }
    if (dir != NULL && dir[0] != '\0') {
        char path[LT_PATH_BYTES];
        size_t bytes;
        LT_TRY(lt_path_join(path, dir, below_root(name)));
        LT_TRY(lt_file_read(&copy, &bytes, path, TEXT_BYTES_MAX));
    } else {
        const char *text = embedded_text(below_root(name));
        if (text == NULL) {
            LT_FAIL(LT_ERR_NOT_FOUND, "no kernel text %s in this build (wanted by %s)", name,
                    wanted_by);
        }
        copy = strdup(text);
    }
    s->text[s->n_parts] = copy;
    s->name[s->n_parts] = strdup(name);
    s->n_parts++;
    if (copy == NULL || s->name[s->n_parts - 1] == NULL) {
        LT_FAIL(LT_ERR_OOM, "kernel text %s", name);
    }
    return LT_OK;
}

static bool has_part(const lt_source *s, const char *name) {
    for (int i = 0; i < s->n_parts; i++) {
        if (strcmp(s->name[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* Add what part i includes: lines that begin with #include "...". */
static lt_err includes_add(lt_source *s, int part) {
    static const char word[] = "#include \"";
    for (const char *line = s->text[part]; line != NULL;
         line = (line = strchr(line, '\n')) == NULL ? NULL : line + 1) {
        char name[256];
        const char *start, *end;
        if (strncmp(line, word, sizeof word - 1) != 0) {
            continue;
        }
        start = line + sizeof word - 1;
        end = strchr(start, '"');
        if (end == NULL || (size_t)(end - start) >= sizeof name) {
            LT_FAIL(LT_ERR_FORMAT, "kernel text %s: bad include line: %.60s", s->name[part], line);
        }
        memcpy(name, start, (size_t)(end - start));
        name[end - start] = '\0';
        if (!has_part(s, name)) {
            LT_TRY(part_add(s, name, s->name[part]));
        }
    }
    return LT_OK;
}

lt_err lt_source_open(lt_source *out, const char *name) {
    lt_err err = LT_OK;
    lt_source s = {0};
    LT_ASSERT(out != NULL && name != NULL);
    LT_TRY_DONE(part_add(&s, name, "the caller"));
    /* The number grows during the loop: included texts include others. */
    for (int i = 0; i < s.n_parts; i++) {
        LT_TRY_DONE(includes_add(&s, i));
    }
    for (int i = 0; i < s.n_parts; i++) {
        s.hash = XXH3_64bits_withSeed(s.name[i], strlen(s.name[i]), s.hash);
        s.hash = XXH3_64bits_withSeed(s.text[i], strlen(s.text[i]), s.hash);
    }
    *out = s;
    s = (lt_source){0};
done:
    lt_source_close(&s);
    return err;
}

void lt_source_close(lt_source *s) {
    for (int i = 0; i < s->n_parts; i++) {
        free((void *)(uintptr_t)s->name[i]);
        free((void *)(uintptr_t)s->text[i]);
    }
    *s = (lt_source){0};
}
