/* text_reader.h: reads documents from .txt and .jsonl files, plain, .gz or .zst, in bounded memory.
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
 * If the first character of a JSONL file is '[', the file is one JSON array and its elements are
 * the records; the data of Alpaca and ShareGPT is published in this form.
 *
 * Messages name a record by (line, offset). offset counts unpacked bytes; lt_text_reader_resume
 * continues from it. Errors name file and line. Empty documents are returned as such. */
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
    /* AUTO: by file name: .jsonl .ndjson .json are JSONL, everything else is text. */
    lt_text_format format;
    const char *field; /* JSONL: the member that contains the text; NULL: "text". */
    /* Text files. NULL or "file": the file is one document; "line": each line is one; "blank":
     * blank lines separate documents; anything else: lines equal to it do, e.g. "<|endoftext|>". */
    const char *split_on;
    lt_utf8_policy utf8;     /* Invalid UTF-8 and lone surrogates: fail, or U+FFFD. */
    size_t record_bytes_max; /* A longer record fails with LIMIT; 0: 1 GiB. */
} lt_text_options;

typedef struct {
    const char *data; /* Valid until the next call on the same reader or buffer. */
    size_t bytes;
    uint64_t line;   /* Line of its first byte, from 1. */
    uint64_t offset; /* Position of its first byte in the unpacked file. */
    /* Set when the record is decoded, so that a record is counted once even if several of its
     * members are decoded: its bytes were searched for invalid UTF-8; it is among the reader's
     * repaired records. */
    bool searched, mended;
} lt_text_record;

/* path "-" is standard input. options NULL: all defaults; their strings must outlive the reader. */
LT_MUST_USE lt_err lt_text_reader_open(lt_text_reader **out, const char *path,
                                       const lt_text_options *options);
void lt_text_reader_close(lt_text_reader *r); /* Accepts NULL. */

/* Read the next raw record; *more = false: there is none. */
LT_MUST_USE lt_err lt_text_reader_next(lt_text_reader *r, lt_text_record *out, bool *more);

/* Decode a raw record to text. Several threads may call it, each with its own buffer. *text lies
 * in the record or in the buffer. */
LT_MUST_USE lt_err lt_text_record_decode(const lt_text_reader *r, lt_text_record *record,
                                         lt_text_buffer *buffer, const char **text, size_t *bytes);

/* Return the record itself, not parsed, as valid UTF-8; lone surrogate escapes of a JSON line
 * become \ufffd, or fail, as the policy says. */
LT_MUST_USE lt_err lt_text_record_line(const lt_text_reader *r, lt_text_record *record,
                                       lt_text_buffer *buffer, const char **text, size_t *bytes);

/* The same for another member of a JSONL record. */
LT_MUST_USE lt_err lt_text_record_decode_field(const lt_text_reader *r, lt_text_record *record,
                                               const char *field, lt_text_buffer *buffer,
                                               const char **text, size_t *bytes);

/* Read the next record and decode it: out->data is valid UTF-8. */
LT_MUST_USE lt_err lt_text_reader_document(lt_text_reader *r, lt_text_record *out, bool *more);

/* Position of the next record: another reader of the same file that resumes there returns the same
 * records. */
void lt_text_reader_tell(const lt_text_reader *r, uint64_t *offset, uint64_t *line);
LT_MUST_USE lt_err lt_text_reader_resume(lt_text_reader *r, uint64_t offset, uint64_t line);

/* For progress: bytes of the (packed) file consumed, and its size, 0 if unknown. */
uint64_t lt_text_reader_consumed_bytes(const lt_text_reader *r);
uint64_t lt_text_reader_file_bytes(const lt_text_reader *r);

/* Whether the path names a file that AUTO reads as JSONL. */
bool lt_text_path_is_jsonl(const char *path);

#endif
