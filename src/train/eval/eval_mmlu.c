/* eval_mmlu.c: MMLU's files: for each subject dev/<subject>_dev.csv (worked examples) and
 * test/<subject>_test.csv, in a folder or in a tar (plain or compressed). A record of the CSV is
 * question,choice0,choice1,choice2,choice3,answer; fields may be quoted, "" is a quote. The first
 * record may be a header, whose last field is "answer"; the tar of the paper has none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "data/byte_source.h"
#include "train/eval/eval_items.h"

#define TAR_BLOCK    512
#define FILE_MAX     ((size_t)64 << 20)
#define N_FIELDS     6 /* question, four choices, answer */
#define PROMPT_BYTES ((size_t)1 << 17)

typedef struct {
    char name[128]; /* Without its folders. */
    char *text;
} csv_file;

typedef struct {
    csv_file *files;
    size_t n;
} csv_files;

static void files_free(csv_files *f) {
    for (size_t i = 0; i < f->n; i++) {
        free(f->files[i].text);
    }
    free(f->files);
    *f = (csv_files){0};
}

/* Takes the text. */
static lt_err files_add(csv_files *f, const char *path, char *text) {
    const char *slash = strrchr(path, '/');
    csv_file *grown = realloc(f->files, (f->n + 1) * sizeof *grown);
    if (grown == NULL) {
        free(text);
        LT_FAIL(LT_ERR_OOM, "%s", path);
    }
    f->files = grown;
    if (snprintf(grown[f->n].name, sizeof grown->name, "%s", slash != NULL ? slash + 1 : path) >=
        (int)sizeof grown->name) {
        free(text);
        LT_FAIL(LT_ERR_LIMIT, "%s: a name of %zu bytes or more", path, sizeof grown->name);
    }
    grown[f->n++].text = text;
    return LT_OK;
}

static lt_err read_folder(csv_files *f, const char *folder) {
    static const char *const parts[] = {"dev", "test"};
    for (size_t p = 0; p < 2; p++) {
        char sub[LT_PATH_BYTES], path[LT_PATH_BYTES], **names = NULL;
        lt_err err = LT_OK;
        size_t n = 0;
        LT_TRY(lt_path_join(sub, folder, parts[p]));
        LT_TRY(lt_file_list(&names, &n, sub));
        for (size_t i = 0; err == LT_OK && i < n; i++) {
            char *text = NULL;
            err = lt_path_join(path, sub, names[i]);
            err = err == LT_OK ? lt_file_read(&text, NULL, path, FILE_MAX) : err;
            err = err == LT_OK ? files_add(f, path, text) : err;
        }
        lt_file_list_free(names, n);
        LT_TRY(err);
    }
    return LT_OK;
}

/* Exactly n bytes; *at_end if there are none. */
static lt_err read_exactly(lt_byte_source *s, char *to, size_t n, bool *at_end, const char *path) {
    size_t have = 0, got = 1;
    while (have < n && got > 0) {
        LT_TRY(lt_byte_source_read(s, to + have, n - have, &got));
        have += got;
    }
    *at_end = have == 0;
    if (have > 0 && have < n) {
        LT_FAIL(LT_ERR_FORMAT, "%s: the tar ends in the middle of a block", path);
    }
    return LT_OK;
}

static lt_err read_tar_member(csv_files *f, lt_byte_source *s, const char *head, const char *path) {
    const size_t bytes = strtoul(head + 124, NULL, 8);
    const size_t padding = (TAR_BLOCK - bytes % TAR_BLOCK) % TAR_BLOCK;
    char name[101] = "", *text;
    bool at_end;

    memcpy(name, head, 100);
    if (head[156] != '0' && head[156] != '\0') {
        return lt_byte_source_skip(s, bytes + padding);
    }
    if (bytes > FILE_MAX) {
        LT_FAIL(LT_ERR_LIMIT, "%s: member %s of %zu bytes", path, name, bytes);
    }
    text = calloc(bytes + 1, 1);
    if (text == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s: member %s of %zu bytes", path, name, bytes);
    }
    if (bytes > 0) {
        const lt_err err = read_exactly(s, text, bytes, &at_end, path);
        if (err != LT_OK) {
            free(text);
            return err;
        }
    }
    LT_TRY(files_add(f, name, text));
    return padding > 0 ? lt_byte_source_skip(s, padding) : LT_OK;
}

static lt_err read_tar(csv_files *f, const char *path) {
    lt_err err = LT_OK;
    lt_byte_source *s = NULL;
    char head[TAR_BLOCK];
    bool at_end = false;

    LT_TRY(lt_byte_source_open(&s, path));
    for (;;) {
        LT_TRY_DONE(read_exactly(s, head, sizeof head, &at_end, path));
        if (at_end || head[0] == '\0') {
            break;
        }
        if (memcmp(head + 257, "ustar", 5) != 0) {
            LT_FAIL_DONE(LT_ERR_FORMAT, "%s: neither a folder nor a tar", path);
        }
        LT_TRY_DONE(read_tar_member(f, s, head, path));
    }
done:
    lt_byte_source_close(s);
    return err;
}

/* Split the next record of a CSV in place; *at moves past it. Returns the number of fields (0: the
 * end); the first max are stored. */
static int next_record(char **at, char **fields, int max) {
    char *p = *at;
    int n = 0;
    if (*p == '\0') {
        return 0;
    }
    for (;;) {
        char *to = p;
        const bool quoted = *p == '"';
        if (n < max) {
            fields[n] = to;
        }
        n++;
        p += quoted ? 1 : 0;
        while (*p != '\0' && (quoted || (*p != ',' && *p != '\n' && *p != '\r'))) {
            if (quoted && *p == '"' && *++p != '"') {
                break;
            }
            *to++ = *p++;
        }
        const char stop = *p;
        p += stop != '\0' ? 1 : 0;
        p += stop == '\r' && *p == '\n' ? 1 : 0;
        *to = '\0';
        if (stop != ',') {
            break;
        }
    }
    *at = p;
    return n;
}

/* A CSV while it is read. */
typedef struct {
    const char *name;
    char *at, *fields[N_FIELDS];
    int64_t record;
} csv_reader;

/* Find the next question; *more is false at the end. Blank lines and the header are skipped. */
static lt_err next_question(csv_reader *r, bool *more) {
    int n;
    do {
        n = next_record(&r->at, r->fields, N_FIELDS);
        r->record++;
        *more = n > 0;
    } while ((n == 1 && r->fields[0][0] == '\0') ||
             (n == N_FIELDS && r->record == 1 && strcmp(r->fields[N_FIELDS - 1], "answer") == 0));
    if (*more && n != N_FIELDS) {
        LT_FAIL(LT_ERR_FORMAT, "%s: record %lld has %d fields, not %d", r->name,
                (long long)r->record, n, N_FIELDS);
    }
    return LT_OK;
}

/* Append "Question\nA. ...\nB. ...\nC. ...\nD. ...\nAnswer:" to text; answer: also " B\n\n". */
static lt_err add_question(char *text, char **fields, const char *answer) {
    const char *question = fields[0] + strspn(fields[0], " \n\t\r");
    const size_t used = strlen(text);
    size_t n = strlen(question);
    while (n > 0 && strchr(" \n\t\r", question[n - 1]) != NULL) {
        n--;
    }
    if (snprintf(text + used, PROMPT_BYTES - used,
                 "%.*s\nA. %s\nB. %s\nC. %s\nD. %s\nAnswer:%s%s%s", (int)n, question, fields[1],
                 fields[2], fields[3], fields[4], answer != NULL ? " " : "",
                 answer != NULL ? answer : "",
                 answer != NULL ? "\n\n" : "") >= (int)(PROMPT_BYTES - used)) {
        LT_FAIL(LT_ERR_LIMIT, "MMLU: a prompt of more than %zu bytes", PROMPT_BYTES);
    }
    return LT_OK;
}

static lt_err answer_index(char **fields, const char *file, int *out) {
    const char *a = fields[5];
    *out = a[0] >= '0' && a[0] <= '3' ? a[0] - '0' : a[0] >= 'A' && a[0] <= 'D' ? a[0] - 'A' : -1;
    if (*out < 0 || a[1] != '\0') {
        LT_FAIL(LT_ERR_FORMAT, "%s: answer '%s' is none of 0 to 3 or A to D", file, a);
    }
    return LT_OK;
}

static csv_file *find_file(const csv_files *f, const char *name) {
    for (size_t i = 0; i < f->n; i++) {
        if (strcmp(f->files[i].name, name) == 0) {
            return &f->files[i];
        }
    }
    return NULL;
}

/* "The following are multiple choice questions ..." and the worked examples. */
static lt_err subject_preamble(char *text, const csv_files *f, const char *subject, int64_t shots) {
    static const char letters[4][2] = {"A", "B", "C", "D"};
    char spoken[128], name[160], *copy;
    csv_reader r = {.name = name};
    const csv_file *dev;
    lt_err err = LT_OK;

    snprintf(spoken, sizeof spoken, "%s", subject);
    for (char *p = spoken; *p != '\0'; p++) {
        *p = *p == '_' ? ' ' : *p;
    }
    snprintf(text, PROMPT_BYTES,
             "The following are multiple choice questions (with answers) about %s.\n\n", spoken);
    snprintf(name, sizeof name, "%s_dev.csv", subject);
    dev = find_file(f, name);
    if (shots == 0) {
        return LT_OK;
    }
    if (dev == NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "no %s, which has the %lld worked examples that are asked for",
                name, (long long)shots);
    }
    copy = strdup(dev->text);
    if (copy == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", name);
    }
    r.at = copy;
    for (int64_t i = 0; i < shots; i++) {
        int answer;
        bool more;
        LT_TRY_DONE(next_question(&r, &more));
        if (!more) {
            LT_FAIL_DONE(LT_ERR_ARG, "%s has %lld worked examples, not the %lld that are asked for",
                         name, (long long)i, (long long)shots);
        }
        LT_TRY_DONE(answer_index(r.fields, name, &answer));
        LT_TRY_DONE(add_question(text, r.fields, letters[answer]));
    }
done:
    free(copy);
    return err;
}

static lt_err add_subject(lt_eval_items *out, const csv_files *f, csv_file *test,
                          const char *subject, int64_t limit, int64_t shots) {
    static const char *const letters[] = {" A", " B", " C", " D"};
    lt_err err = LT_OK;
    csv_reader r = {.name = test->name, .at = test->text};
    char *text = malloc(PROMPT_BYTES);
    size_t preamble;

    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "MMLU prompt");
    }
    LT_TRY_DONE(subject_preamble(text, f, subject, shots));
    preamble = strlen(text);
    while (limit == 0 || out->n < limit) {
        lt_eval_item *item;
        bool more;
        LT_TRY_DONE(next_question(&r, &more));
        if (!more) {
            break;
        }
        LT_TRY_DONE(lt_eval_items_add(out, &item));
        text[preamble] = '\0';
        LT_TRY_DONE(add_question(text, r.fields, NULL));
        for (int i = 0; i < 4; i++) {
            LT_TRY_DONE(lt_eval_item_pair(item, text, letters[i]));
        }
        LT_TRY_DONE(answer_index(r.fields, test->name, &item->gold));
    }
done:
    free(text);
    return err;
}

static int compare_files(const void *a, const void *b) {
    return strcmp(((const csv_file *)a)->name, ((const csv_file *)b)->name);
}

lt_err lt_eval_mmlu_read(lt_eval_items *out, const char *data, int64_t limit, int64_t shots) {
    static const char suffix[] = "_test.csv";
    lt_err err = LT_OK;
    csv_files f = {0};

    LT_TRY_DONE(lt_file_is_dir(data) ? read_folder(&f, data) : read_tar(&f, data));
    if (f.n > 1) {
        qsort(f.files, f.n, sizeof *f.files, compare_files);
    }
    for (size_t i = 0; i < f.n; i++) {
        char subject[128];
        if (!lt_path_has_suffix(f.files[i].name, suffix)) {
            continue;
        }
        snprintf(subject, sizeof subject, "%.*s", (int)(strlen(f.files[i].name) - strlen(suffix)),
                 f.files[i].name);
        LT_TRY_DONE(add_subject(out, &f, &f.files[i], subject, limit, shots));
    }
    if (out->n == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: no <subject>_test.csv with questions", data);
    }
done:
    files_free(&f);
    return err;
}
