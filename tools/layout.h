/*
 * Tables and paragraphs of at most FA_LAYOUT_COLUMNS columns. One thread. A byte sequence of UTF-8
 * counts as one column.
 */
#pragma once

#include "tools/format.h"

#include <stddef.h>
#include <stdio.h>

#define FA_LAYOUT_COLUMNS 80
#define FA_LAYOUT_CELLS_MAX 10
#define FA_LAYOUT_CELL_BYTES FA_FORMAT_BYTES

/* Prints @label in ten columns, and the text beside it, in several lines if it is long. */
void fa_layout_paragraph(FILE *file, const char *label, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

struct fa_layout_row {
	char cells[FA_LAYOUT_CELLS_MAX][FA_LAYOUT_CELL_BYTES];
	const char *text; /* must live until the table is printed; NULL: none */
};

/* Short cells, aligned to the right, and maybe a last column of texts. */
struct fa_layout_table {
	const char *titles[FA_LAYOUT_CELLS_MAX];
	size_t n_cells;
	const char *text_title; /* NULL: no texts */
	struct fa_layout_row *rows;
	size_t n_rows;
};

/* An empty row, valid until the next one; NULL: no memory. */
struct fa_layout_row *fa_layout_add(struct fa_layout_table *table);

/* Prints an empty line, @caption, titles and rows, which are freed. A text that does not fit beside
 * its cells follows in its own lines, whole. */
void fa_layout_print(struct fa_layout_table *table, const char *caption, FILE *file);
