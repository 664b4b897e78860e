/* text_reader.h: documents out of .txt and .jsonl files, plain, .gz or .zst, in bounded memory.
 *
 * Two steps, so that reading can be one thread and decoding many:
 *     lt_text_reader_next    cuts the next raw record out of the file (a line, a paragraph, a whole
 *                            file)
 *     lt_text_record_decode  turns it into UTF-8 text: JSON member, UTF-8 policy
 * or lt_text_reader_document, which does both. Example:
 *
 *     LT_TRY_DONE(lt_text_reader_open(&r, "corpus.jsonl.zst", &options));
 *     for (;;) {
 *         LT_TRY_DONE(lt_text_reader_document(r, &text, &more));
 *         if (!more) { break; }
 *         use(text.data, text.bytes);
 *     }
 *
 * A record's (line, offset) name it in messages; offset counts unpacked bytes and is where
 * lt_text_reader_resume goes on. Errors name file and line. Empty documents are returned as
 * such. */
#ifndef LT_DATA_TEXT_READER_H
#define LT_DATA_TEXT_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/json_line.h"
#include "lateen/base.h"

typedef struct lt_text_reader lt_text_reader;

typedef enum { LT_TEXT_AUTO, LT_TEXT_PLAIN, LT_TEXT_JSONL } lt_text_format;
typedef enum { LT_UTF8_FAIL, LT_UTF8_REPLACE } lt_utf8_policy;

typedef struct {
    /* AUTO: by the name: .jsonl .ndjson .json are JSONL, everything else text. */
    lt_text_format format;
    const char *field; /* JSONL: the member that holds the text; NULL: "text". */
    /* Text: NULL or "file": the file is one document; "line"; "blank": documents are parted by
     * blank lines; anything else: by lines that equal it, e.g. "<|endoftext|>". */
    const char *split_on;
    lt_utf8_policy utf8;     /* Invalid UTF-8 and lone surrogates: fail, or U+FFFD. */
    size_t record_bytes_max; /* A longer record fails with LIMIT; 0: 1 GiB. */
} lt_text_options;

typedef struct {
    const char *data; /* Lives until the next call on the same reader or buffer. */
    size_t bytes;
    uint64_t line;   /* Of its first byte, from 1. */
    uint64_t offset; /* Of its first byte in the unpacked file. */
} lt_text_record;

/* path "-" is standard input. options NULL: all defaults; their strings must outlive the reader. */
LT_MUST_USE lt_err lt_text_reader_open(lt_text_reader **out, const char *path,
                                       const lt_text_options *options);
void lt_text_reader_close(lt_text_reader *r); /* Accepts NULL. */

/* The next raw record, or *more = false at the end. */
LT_MUST_USE lt_err lt_text_reader_next(lt_text_reader *r, lt_text_record *out, bool *more);

/* Raw record to text. Safe from several threads with a buffer each. *text lies in the record or in
 * the buffer. */
LT_MUST_USE lt_err lt_text_record_decode(const lt_text_reader *r, const lt_text_record *record,
                                         lt_text_buffer *buffer, const char **text, size_t *bytes);

/* The record itself as valid UTF-8, not parsed; by the policy, lone surrogate escapes of a JSON
 * line become \ufffd. */
LT_MUST_USE lt_err lt_text_record_line(const lt_text_reader *r, const lt_text_record *record,
                                       lt_text_buffer *buffer, const char **text, size_t *bytes);

/* The same of another member of a JSONL record. */
LT_MUST_USE lt_err lt_text_record_decode_field(const lt_text_reader *r,
                                               const lt_text_record *record, const char *field,
                                               lt_text_buffer *buffer, const char **text,
                                               size_t *bytes);

/* Next, decoded: out->data is valid UTF-8. */
LT_MUST_USE lt_err lt_text_reader_document(lt_text_reader *r, lt_text_record *out, bool *more);

/* Where the next record begins; a reader opened anew on the same file and resumed there goes on
 * identically. */
void lt_text_reader_tell(const lt_text_reader *r, uint64_t *offset, uint64_t *line);
LT_MUST_USE lt_err lt_text_reader_resume(lt_text_reader *r, uint64_t offset, uint64_t line);

/* For progress: bytes of the (packed) file consumed, and its size, 0 if unknown. */
uint64_t lt_text_reader_consumed_bytes(const lt_text_reader *r);
uint64_t lt_text_reader_file_bytes(const lt_text_reader *r);

/* Does the path name text that AUTO reads as JSONL? */
bool lt_text_path_is_jsonl(const char *path);

#endif
