/* shard_format.h: the byte layout of token shards, for the reader and the writer.
 *
 * Megatron's indexed dataset, all little-endian:
 *
 *     PREFIX.bin   token ids of all sequences, in order
 *     PREFIX.idx   9 B  magic "MMIDIDX\0\0"
 *                  8 B  version, 1
 *                  1 B  element type: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16
 *                  8 B  S, number of sequences
 *                  8 B  D, number of entries of the document table
 *                  4 B x S  tokens in each sequence (i32)
 *                  8 B x S  byte offset of each sequence in .bin (i64)
 *                  8 B x D  first sequence of each document (i64), then S: D - 1 documents
 *                  [1 B x S  modes, multimodal data sets only; ignored]
 *
 *     PREFIX.mask  optional, one byte per token: 1 the token is a label, 0 it is silent (read,
 *                  never predicted). No header, so its size is the number of tokens. Lateen's own;
 *                  also read beside an llm.c file.
 *
 * The header is 34 bytes, so nothing after it is aligned: every number is read with memcpy.
 *
 * llm.c: 256 i32 (magic 20240520 version 1: u16 ids; magic 20240801 version 7: u32 ids; then the
 * number of tokens), then the ids. */
#ifndef LT_DATA_SHARD_FORMAT_H
#define LT_DATA_SHARD_FORMAT_H

#define LT_IDX_MAGIC        "MMIDIDX\0" /* With its terminating 0: 9 bytes. */
#define LT_IDX_MAGIC_BYTES  9
#define LT_IDX_VERSION      1
#define LT_IDX_HEADER_BYTES 34

enum {
    LT_IDX_U8 = 1,
    LT_IDX_I8,
    LT_IDX_I16,
    LT_IDX_I32,
    LT_IDX_I64,
    LT_IDX_F64,
    LT_IDX_F32,
    LT_IDX_U16,
};

enum { LT_MASK_SILENT, LT_MASK_LABEL };

#define LT_LLMC_HEADER_BYTES 1024
#define LT_LLMC_MAGIC_U16    20240520
#define LT_LLMC_VERSION_U16  1
#define LT_LLMC_MAGIC_U32    20240801
#define LT_LLMC_VERSION_U32  7

/* Megatron's rule: u16 if every id fits with some margin, otherwise i32. */
#define LT_IDX_U16_VOCAB_END 65500

#endif
