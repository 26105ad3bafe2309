#include "tools/layout.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LABEL_COLUMNS 10
#define GAP 2 /* spaces between columns */
#define TEXT_BYTES 2048

static bool starts_column(char byte)
{
	return ((unsigned char)byte & 0xc0) != 0x80;
}

static size_t columns_of(const char *text)
{
	size_t n = 0;

	for (; *text; ++text)
		n += starts_column(*text);
	return n;
}

/* Bytes of @text for a line of so many columns. It ends with a word, if it has more than one. */
static size_t line_bytes(const char *text, size_t columns)
{
	size_t used = 0, n, word_end = 0;

	for (n = 0; text[n]; ++n) {
		if (starts_column(text[n]) && used++ == columns)
			break;
		if (text[n] == ' ')
			word_end = n;
	}
	if (text[n] == ' ' || !text[n] || !word_end)
		return n;
	return word_end;
}

static void print_wrapped(const char *text, size_t indent, FILE *file)
{
	for (;;) {
		size_t n = line_bytes(text, FA_LAYOUT_COLUMNS - indent);

		const char *next = text + n + strspn(text + n, " ");

		while (n && text[n - 1] == ' ')
			--n;
		fprintf(file, "%.*s\n", (int)n, text);
		text = next;
		if (!*text)
			return;
		fprintf(file, "%*s", (int)indent, "");
	}
}

void fa_layout_paragraph(FILE *file, const char *label, const char *format, ...)
{
	char text[TEXT_BYTES];
	va_list args;

	va_start(args, format);
	(void)vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(file, "%-*s", LABEL_COLUMNS, label);
	print_wrapped(text, LABEL_COLUMNS, file);
}

struct fa_layout_row *fa_layout_add(struct fa_layout_table *table)
{
	struct fa_layout_row *rows;

	rows = realloc(table->rows, (table->n_rows + 1) * sizeof(*rows));
	if (!rows)
		return NULL;
	table->rows = rows;
	rows[table->n_rows] = (struct fa_layout_row){};
	return &rows[table->n_rows++];
}

static void print_cell(const char *cell, size_t width, bool first, FILE *file)
{
	const size_t pad = width - columns_of(cell);

	fprintf(file, "%*s%s", (int)(pad + (first ? 0 : GAP)), "", cell);
}

/* @used: columns of the cells before it */
static void print_text(const char *text, size_t used, FILE *file)
{
	if (!text || !*text) {
		fputc('\n', file);
	} else if (used + GAP + columns_of(text) <= FA_LAYOUT_COLUMNS) {
		fprintf(file, "%*s%s\n", GAP, "", text);
	} else {
		fprintf(file, "\n%*s", LABEL_COLUMNS, "");
		print_wrapped(text, LABEL_COLUMNS, file);
	}
}

void fa_layout_print(struct fa_layout_table *table, const char *caption, FILE *file)
{
	size_t widths[FA_LAYOUT_CELLS_MAX], used = 0;

	for (size_t i = 0; i < table->n_cells; ++i) {
		widths[i] = columns_of(table->titles[i]);
		for (size_t row = 0; row < table->n_rows; ++row) {
			const size_t width = columns_of(table->rows[row].cells[i]);

			widths[i] = width > widths[i] ? width : widths[i];
		}
		used += widths[i] + (i ? GAP : 0);
	}
	fprintf(file, "\n%s\n", caption);
	for (size_t i = 0; i < table->n_cells; ++i)
		print_cell(table->titles[i], widths[i], i == 0, file);
	print_text(table->text_title, used, file);
	for (size_t row = 0; row < table->n_rows; ++row) {
		for (size_t i = 0; i < table->n_cells; ++i)
			print_cell(table->rows[row].cells[i], widths[i], i == 0, file);
		print_text(table->rows[row].text, used, file);
	}
	free(table->rows);
	table->rows = NULL;
	table->n_rows = 0;
}
