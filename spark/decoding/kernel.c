/* Records of batches and the buffers of Arrow columns, both ways: the compiled twin of numpy_decoder.py, and of
   writing/encoding.py.

   decode(data, sections, floor, start, end, wanted, allocate) -> None or
       (rows, last_offset, key, value, offset, timestamp, timestamp_type, headers)
   encode(rows, first, base_timestamp, timestamps, key, value, headers) -> bytes
   hashes(key, count) -> bytes

   The bytes of a record are the producer's.  Every read is bounded by the record, and the record by its section.  The
   kernel *refuses* what it finds wrong: it returns None, and numpy_decoder.py, which makes the same checks, names the
   error.  So there is one place with messages, and a record that the two judge differently is never lost.

   Two walks, so that no buffer is larger than what it holds: the first checks all records, fills the columns of
   numbers and notes where keys and values stand; the second copies those.  Both release the interpreter's lock.
   `allocate(size)` gives each buffer.

   Only the stable ABI of CPython 3.11 is used: one build serves all later versions. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { KEY = 1, VALUE = 2, OFFSET = 4, TIMESTAMP = 8, TIMESTAMP_TYPE = 16, HEADERS = 32 };

#define RECORD_BYTES_MIN 7 /* length, attributes, timestamp, offset, key length, value length, header count */
#define HEADER_BYTES_MIN 2 /* of a header of a record: two lengths */
#define LENGTH_BYTES_MAX 5 /* of the varint before a record */
#define LOG_APPEND_TIME 0x08
#define TIMESTAMP_MS_MAX (INT64_MAX / 1000) /* Spark counts microseconds in 64 bits */

typedef struct {
    const uint8_t *start, *end;
    int64_t base_offset, last_offset_delta, base_timestamp, max_timestamp, record_count;
    int32_t timestamp_type;
} Section;

typedef struct { /* a buffer of a column, from `allocate` */
    PyObject *owner;
    Py_buffer view;
} Room;

typedef struct { /* a binary column; `begin` says where in the data each value stands */
    int32_t *begin;
    Room valid, offsets, data;
    int64_t nulls;
} Binary;

typedef struct {
    Py_buffer data;
    Section *sections;
    Py_ssize_t section_count;
    int64_t floor, start, end, rows_max;
    int wanted;
    PyObject *allocate;

    int64_t rows, last_offset;
    Binary key, value;
    Room offset, timestamp, timestamp_type;
    /* headers: a list for each row; name and value of its entries */
    int32_t *headers_begin, *headers_end;
    Room lists_valid, lists_offsets;
    int64_t lists_null, entries;
    Binary name, content;
} Job;

/* ---- varints -------------------------------------------------------------------------------------------------- */

/* A zigzag varint of at most ten bytes.  The bits above the 64th fall away, as they do in numpy_decoder.py. */
static inline int
read_varint(const uint8_t **at, const uint8_t *end, int64_t *value)
{
    uint64_t folded = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (*at == end)
            return 0;
        uint8_t octet = *(*at)++;
        folded |= (uint64_t)(octet & 127) << shift;
        if (octet < 128) {
            *value = (int64_t)((folded >> 1) ^ (0 - (folded & 1)));
            return 1;
        }
    }
    return 0;
}

/* The end of the record whose length stands at `*at`; NULL for one that does not lie before `end`. */
static inline const uint8_t *
read_record_end(const uint8_t **at, const uint8_t *end)
{
    uint64_t folded = 0;
    for (int shift = 0; shift < 7 * LENGTH_BYTES_MAX; shift += 7) {
        if (*at == end)
            return NULL;
        uint8_t octet = *(*at)++;
        folded |= (uint64_t)(octet & 127) << shift;
        if (octet < 128) {
            if ((folded & 1) || (folded >> 1) > (uint64_t)(end - *at))
                return NULL;
            return *at + (folded >> 1);
        }
    }
    return NULL;
}

/* A length and that many bytes, which `*at` then is behind; `shortest` is -1 where null is allowed, else 0. */
static inline int
read_bytes(const uint8_t **at, const uint8_t *end, int64_t shortest, const uint8_t **begin, int64_t *length)
{
    if (!read_varint(at, end, length) || *length < shortest || *length > end - *at)
        return 0;
    *begin = *at;
    if (*length > 0)
        *at += *length;
    return 1;
}

/* ---- columns -------------------------------------------------------------------------------------------------- */

static inline void
append_bytes(Binary *column, int64_t row, const uint8_t *begin, int64_t length, const uint8_t *data)
{
    int32_t *offsets = column->offsets.view.buf;
    column->begin[row] = (int32_t)(begin - data);
    if (length < 0) {
        ((uint8_t *)column->valid.view.buf)[row >> 3] &= (uint8_t)~(1u << (row & 7));
        column->nulls++;
        length = 0;
    }
    offsets[row + 1] = offsets[row] + (int32_t)length;
}

static inline int
timestamp_ms_of(const Section *section, int64_t delta, int64_t *timestamp_ms)
{
    int64_t base = section->base_timestamp;
    if (section->timestamp_type)
        *timestamp_ms = section->max_timestamp;
    else if (delta > 0 ? base > INT64_MAX - delta : base < INT64_MIN - delta)
        return 0;
    else
        *timestamp_ms = base + delta;
    return *timestamp_ms <= TIMESTAMP_MS_MAX && *timestamp_ms >= -TIMESTAMP_MS_MAX;
}

/* The first walk; 0 refuses.  Without the interpreter's lock. */
static int
walk_records(Job *job)
{
    const uint8_t *data = job->data.buf;
    const int wanted = job->wanted;
    int64_t previous = job->floor, row = 0;
    for (Py_ssize_t number = 0; number < job->section_count; number++) {
        const Section *section = &job->sections[number];
        const uint8_t *at = section->start;
        for (int64_t left = section->record_count; left > 0; left--) {
            int64_t timestamp_delta, offset_delta, key_length, value_length;
            const uint8_t *key, *value, *end = read_record_end(&at, section->end);
            if (end == NULL || at == end)
                return 0;
            at++; /* the attributes byte is unused */
            if (!read_varint(&at, end, &timestamp_delta) || !read_varint(&at, end, &offset_delta) ||
                !read_bytes(&at, end, -1, &key, &key_length) || !read_bytes(&at, end, -1, &value, &value_length) ||
                at == end || offset_delta < 0 || offset_delta > section->last_offset_delta)
                return 0;
            int64_t offset = (int64_t)((uint64_t)section->base_offset + (uint64_t)offset_delta);
            if (offset <= previous)
                return 0;
            previous = offset;
            if (offset >= job->start && offset < job->end) {
                if (wanted & KEY)
                    append_bytes(&job->key, row, key, key_length, data);
                if (wanted & VALUE)
                    append_bytes(&job->value, row, value, value_length, data);
                if (wanted & OFFSET)
                    ((int64_t *)job->offset.view.buf)[row] = offset;
                if (wanted & TIMESTAMP) {
                    int64_t timestamp_ms;
                    if (!timestamp_ms_of(section, timestamp_delta, &timestamp_ms))
                        return 0;
                    ((int64_t *)job->timestamp.view.buf)[row] = timestamp_ms * 1000;
                }
                if (wanted & TIMESTAMP_TYPE)
                    ((int32_t *)job->timestamp_type.view.buf)[row] = section->timestamp_type;
                if (wanted & HEADERS) {
                    int32_t *offsets = job->lists_offsets.view.buf;
                    int64_t count;
                    if (!read_varint(&at, end, &count) || count < 0 || count > (end - at) / HEADER_BYTES_MIN)
                        return 0;
                    if (count == 0) {
                        if (at != end)
                            return 0;
                        ((uint8_t *)job->lists_valid.view.buf)[row >> 3] &= (uint8_t)~(1u << (row & 7));
                        job->lists_null++;
                    }
                    job->headers_begin[row] = (int32_t)(at - data);
                    job->headers_end[row] = (int32_t)(end - data);
                    offsets[row + 1] = offsets[row] + (int32_t)count;
                }
                row++;
            }
            at = end;
        }
        if (at != section->end)
            return 0;
    }
    job->rows = row;
    job->last_offset = previous;
    job->entries = job->wanted & HEADERS ? ((int32_t *)job->lists_offsets.view.buf)[row] : 0;
    return 1;
}

static int
walk_headers(Job *job)
{
    const uint8_t *data = job->data.buf;
    const int32_t *lists = job->lists_offsets.view.buf;
    int64_t entry = 0;
    for (int64_t row = 0; row < job->rows; row++) {
        const uint8_t *at = data + job->headers_begin[row], *end = data + job->headers_end[row];
        for (; entry < lists[row + 1]; entry++) {
            const uint8_t *name, *content;
            int64_t name_length, content_length;
            if (!read_bytes(&at, end, 0, &name, &name_length) || !read_bytes(&at, end, -1, &content, &content_length))
                return 0;
            append_bytes(&job->name, entry, name, name_length, data);
            append_bytes(&job->content, entry, content, content_length, data);
        }
        if (at != end)
            return 0;
    }
    return 1;
}

/* The second walk. */
static void
copy_bytes(Binary *column, int64_t count, const uint8_t *data)
{
    const int32_t *offsets = column->offsets.view.buf;
    uint8_t *out = column->data.view.buf;
    for (int64_t row = 0; row < count; row++) {
        int32_t length = offsets[row + 1] - offsets[row];
        if (length > 0)
            memcpy(out + offsets[row], data + column->begin[row], (size_t)length);
    }
}

/* ---- memory --------------------------------------------------------------------------------------------------- */

static int
reserve(Job *job, Room *room, int64_t size)
{
    room->owner = PyObject_CallFunction(job->allocate, "L", (long long)size);
    if (room->owner == NULL)
        return 0;
    if (PyObject_GetBuffer(room->owner, &room->view, PyBUF_WRITABLE) < 0)
        return 0;
    if (room->view.len < size) {
        PyErr_Format(PyExc_ValueError, "allocate(%lld) gave %zd bytes", (long long)size, room->view.len);
        return 0;
    }
    return 1;
}

static int
reserve_bits(Job *job, Room *room, int64_t count)
{
    if (!reserve(job, room, (count + 7) / 8))
        return 0;
    if (count > 0)
        memset(room->view.buf, 0xff, (size_t)((count + 7) / 8));
    return 1;
}

static int
reserve_offsets(Job *job, Room *room, int64_t count)
{
    if (!reserve(job, room, (count + 1) * (int64_t)sizeof(int32_t)))
        return 0;
    ((int32_t *)room->view.buf)[0] = 0;
    return 1;
}

static int32_t *
reserve_positions(int64_t count)
{
    int32_t *positions = PyMem_Malloc((size_t)count * sizeof(int32_t));
    if (positions == NULL)
        PyErr_NoMemory();
    return positions;
}

static int
reserve_column(Job *job, Binary *column, int64_t count)
{
    return (column->begin = reserve_positions(count)) != NULL && reserve_bits(job, &column->valid, count) &&
           reserve_offsets(job, &column->offsets, count);
}

static int
reserve_bytes(Job *job, Binary *column, int64_t count)
{
    return reserve(job, &column->data, ((int32_t *)column->offsets.view.buf)[count]);
}

static int
reserve_rows(Job *job)
{
    int64_t rows = job->rows_max;
    return (!(job->wanted & KEY) || reserve_column(job, &job->key, rows)) &&
           (!(job->wanted & VALUE) || reserve_column(job, &job->value, rows)) &&
           (!(job->wanted & OFFSET) || reserve(job, &job->offset, rows * 8)) &&
           (!(job->wanted & TIMESTAMP) || reserve(job, &job->timestamp, rows * 8)) &&
           (!(job->wanted & TIMESTAMP_TYPE) || reserve(job, &job->timestamp_type, rows * 4)) &&
           (!(job->wanted & HEADERS) ||
            ((job->headers_begin = reserve_positions(rows)) != NULL &&
             (job->headers_end = reserve_positions(rows)) != NULL && reserve_bits(job, &job->lists_valid, rows) &&
             reserve_offsets(job, &job->lists_offsets, rows)));
}

static void
release_room(Room *room)
{
    if (room->view.obj != NULL)
        PyBuffer_Release(&room->view);
    Py_CLEAR(room->owner);
}

static void
release_column(Binary *column)
{
    PyMem_Free(column->begin);
    release_room(&column->valid);
    release_room(&column->offsets);
    release_room(&column->data);
}

static void
release(Job *job)
{
    release_column(&job->key);
    release_column(&job->value);
    release_column(&job->name);
    release_column(&job->content);
    release_room(&job->offset);
    release_room(&job->timestamp);
    release_room(&job->timestamp_type);
    release_room(&job->lists_valid);
    release_room(&job->lists_offsets);
    PyMem_Free(job->headers_begin);
    PyMem_Free(job->headers_end);
    PyMem_Free(job->sections);
    PyBuffer_Release(&job->data);
}

/* ---- Python --------------------------------------------------------------------------------------------------- */

static int64_t
integer_at(PyObject *tuple, Py_ssize_t index)
{
    PyObject *item = PyTuple_GetItem(tuple, index);
    return item == NULL ? -1 : PyLong_AsLongLong(item);
}

/* 1, 0 for a section that cannot hold its records, -1 with an exception.  The data is `free` from where the section
   before ends: what all sections hold together then fits into the offsets of one column. */
static int
read_section(Job *job, PyObject *item, const uint8_t *free, Section *section)
{
    if (!PyTuple_Check(item) || PyTuple_Size(item) != 3 || !PyTuple_Check(PyTuple_GetItem(item, 0))) {
        PyErr_SetString(PyExc_TypeError, "a section is (header, start, end)");
        return -1;
    }
    PyObject *header = PyTuple_GetItem(item, 0);
    int64_t start = integer_at(item, 1), end = integer_at(item, 2), attributes = integer_at(header, 5);
    section->base_offset = integer_at(header, 0);
    section->last_offset_delta = integer_at(header, 6);
    section->base_timestamp = integer_at(header, 7);
    section->max_timestamp = integer_at(header, 8);
    section->record_count = integer_at(header, 12);
    if (PyErr_Occurred())
        return -1;
    if (start < free - (const uint8_t *)job->data.buf || start > end || end > job->data.len) {
        PyErr_SetString(PyExc_ValueError, "a section lies outside of the data, or overlaps the one before");
        return -1;
    }
    section->start = (const uint8_t *)job->data.buf + start;
    section->end = (const uint8_t *)job->data.buf + end;
    section->timestamp_type = (attributes & LOG_APPEND_TIME) != 0;
    if (section->record_count < 1 || section->record_count > (end - start) / RECORD_BYTES_MIN)
        return 0;
    job->rows_max += section->record_count;
    return 1;
}

static int
read_sections(Job *job, PyObject *list)
{
    Py_ssize_t count = PyList_Size(list);
    if (count < 0)
        return -1;
    if (count == 0 || job->data.len > INT32_MAX) /* the offsets of a binary column have 32 bits */
        return 0;
    job->sections = PyMem_Calloc((size_t)count, sizeof(Section));
    if (job->sections == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    job->section_count = count;
    const uint8_t *free = job->data.buf;
    for (Py_ssize_t number = 0; number < count; number++) {
        int read = read_section(job, PyList_GetItem(list, number), free, &job->sections[number]);
        if (read != 1)
            return read;
        free = job->sections[number].end;
    }
    return 1;
}

static PyObject *
made_column(Binary *column)
{
    if (column->offsets.owner == NULL)
        Py_RETURN_NONE;
    return Py_BuildValue("(OLOO)", column->nulls ? column->valid.owner : Py_None, (long long)column->nulls,
                         column->offsets.owner, column->data.owner);
}

static PyObject *
made_headers(Job *job)
{
    if (job->lists_offsets.owner == NULL)
        Py_RETURN_NONE;
    return Py_BuildValue("(OLOLNN)", job->lists_null ? job->lists_valid.owner : Py_None, (long long)job->lists_null,
                         job->lists_offsets.owner, (long long)job->entries, made_column(&job->name),
                         made_column(&job->content));
}

static PyObject *
made_numbers(Room *room)
{
    return Py_NewRef(room->owner == NULL ? Py_None : room->owner);
}

/* 1, 0 refuses, -1 with an exception. */
static int
run(Job *job)
{
    const uint8_t *data = job->data.buf;
    int right;
    if (!reserve_rows(job))
        return -1;
    Py_BEGIN_ALLOW_THREADS
    right = walk_records(job);
    Py_END_ALLOW_THREADS
    if (!right)
        return 0;
    if (job->wanted & HEADERS) {
        if (!reserve_column(job, &job->name, job->entries) || !reserve_column(job, &job->content, job->entries))
            return -1;
        Py_BEGIN_ALLOW_THREADS
        right = walk_headers(job);
        Py_END_ALLOW_THREADS
        if (!right)
            return 0;
        if (!reserve_bytes(job, &job->name, job->entries) || !reserve_bytes(job, &job->content, job->entries))
            return -1;
    }
    if ((job->wanted & KEY && !reserve_bytes(job, &job->key, job->rows)) ||
        (job->wanted & VALUE && !reserve_bytes(job, &job->value, job->rows)))
        return -1;
    Py_BEGIN_ALLOW_THREADS
    if (job->wanted & KEY)
        copy_bytes(&job->key, job->rows, data);
    if (job->wanted & VALUE)
        copy_bytes(&job->value, job->rows, data);
    if (job->wanted & HEADERS) {
        copy_bytes(&job->name, job->entries, data);
        copy_bytes(&job->content, job->entries, data);
    }
    Py_END_ALLOW_THREADS
    return 1;
}

static PyObject *
decode(PyObject *module, PyObject *arguments)
{
    Job job = {0};
    PyObject *sections, *made = NULL;
    long long floor, start, end;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*O!LLLiO:decode", &job.data, &PyList_Type, &sections, &floor, &start, &end,
                          &job.wanted, &job.allocate))
        return NULL;
    job.floor = floor;
    job.start = start;
    job.end = end;
    int done = read_sections(&job, sections);
    if (done == 1)
        done = run(&job);
    if (done == 0)
        made = Py_NewRef(Py_None);
    else if (done == 1)
        made = Py_BuildValue("(LLNNNNNN)", (long long)job.rows, (long long)job.last_offset, made_column(&job.key),
                             made_column(&job.value), made_numbers(&job.offset), made_numbers(&job.timestamp),
                             made_numbers(&job.timestamp_type), made_headers(&job));
    release(&job);
    return made;
}

/* ---- encoding ------------------------------------------------------------------------------------------------- */

typedef struct { /* a binary or string column: (validity or None, offsets, data, where the array begins in them) */
    Py_buffer valid, offsets, data;
    int64_t at;
} Bytes;

typedef struct { /* (validity or None, offsets, where the array begins in them, keys, values) */
    Py_buffer valid, offsets;
    int64_t at;
    Bytes key, value;
    int given;
} Lists;

typedef struct {
    Py_buffer rows, timestamps;
    const int64_t *row, *timestamp; /* a timestamp for each row of the columns */
    int64_t count, first, base_timestamp;
    Bytes key, value;
    int has_key;
    Lists headers;
    int64_t *sizes; /* of each record, without its length */
} Encoding;

static inline int64_t
varint_bytes(int64_t value)
{
    uint64_t folded = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    int64_t size = 1;
    while (folded >>= 7)
        size++;
    return size;
}

static inline uint8_t *
write_varint(uint8_t *out, int64_t value)
{
    uint64_t folded = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    for (; folded > 127; folded >>= 7)
        *out++ = (uint8_t)(folded | 128);
    *out++ = (uint8_t)folded;
    return out;
}

/* Where element `index` (0 or more) of an array begins and ends, by its offsets; 0 unless they lie within `size`. */
static inline int
extent_at(const Py_buffer *offsets, int64_t at, int64_t index, int64_t size, int64_t *begin, int64_t *end)
{
    if (at + index + 1 >= offsets->len / (int64_t)sizeof(int32_t))
        return 0;
    const int32_t *offset = (const int32_t *)offsets->buf + at + index;
    *begin = offset[0];
    *end = offset[1];
    return *begin >= 0 && *begin <= *end && *end <= size;
}

/* 1, 0 for null, -1 when the index lies outside of the array. */
static inline int
valid_at(const Py_buffer *valid, int64_t at, int64_t index)
{
    if (valid->obj == NULL)
        return 1;
    if ((at + index) / 8 >= valid->len)
        return -1;
    return ((const uint8_t *)valid->buf)[(at + index) >> 3] >> ((at + index) & 7) & 1;
}

/* `length` is -1 for null; 0 when the row lies outside of the column. */
static inline int
bytes_at(const Bytes *column, int64_t row, const uint8_t **begin, int64_t *length)
{
    int valid = valid_at(&column->valid, column->at, row);
    if (valid < 1) {
        *length = -1;
        return valid == 0;
    }
    int64_t from, to;
    if (!extent_at(&column->offsets, column->at, row, column->data.len, &from, &to))
        return 0;
    *begin = (const uint8_t *)column->data.buf + from;
    *length = to - from;
    return 1;
}

static inline int64_t
nullable_bytes(int64_t length)
{
    return varint_bytes(length) + (length > 0 ? length : 0);
}

static inline uint8_t *
write_nullable(uint8_t *out, const uint8_t *begin, int64_t length)
{
    out = write_varint(out, length);
    if (length > 0) {
        memcpy(out, begin, (size_t)length);
        out += length;
    }
    return out;
}

static inline int
headers_at(const Lists *headers, int64_t row, int64_t *begin, int64_t *end)
{
    *begin = *end = 0;
    if (!headers->given)
        return 1;
    int valid = valid_at(&headers->valid, headers->at, row);
    return valid == 1 ? extent_at(&headers->offsets, headers->at, row, INT32_MAX, begin, end) : valid == 0;
}

static inline int64_t
timestamp_delta(const Encoding *job, int64_t row)
{
    return (int64_t)((uint64_t)job->timestamp[row] - (uint64_t)job->base_timestamp);
}

/* The first walk: the size of all records; -1 when a row lies outside of a column, or is too large for a record. */
static int64_t
measure_records(Encoding *job)
{
    int64_t total = 0, timestamps = job->timestamps.len / (int64_t)sizeof(int64_t);
    for (int64_t number = 0; number < job->count; number++) {
        int64_t row = job->row[number], length, entry, end;
        const uint8_t *begin;
        if (row < 0 || row >= timestamps)
            return -1;
        int64_t size = 1 + varint_bytes(timestamp_delta(job, row)) + varint_bytes(job->first + number);
        length = -1;
        if (job->has_key && !bytes_at(&job->key, row, &begin, &length))
            return -1;
        size += nullable_bytes(length);
        if (!bytes_at(&job->value, row, &begin, &length))
            return -1;
        size += nullable_bytes(length);
        if (!headers_at(&job->headers, row, &entry, &end))
            return -1;
        size += varint_bytes(end - entry);
        for (; entry < end; entry++) {
            if (!bytes_at(&job->headers.key, entry, &begin, &length) || length < 0)
                return -1;
            size += nullable_bytes(length);
            if (!bytes_at(&job->headers.value, entry, &begin, &length))
                return -1;
            size += nullable_bytes(length);
        }
        if (size > INT32_MAX)
            return -1;
        job->sizes[number] = size;
        total += varint_bytes(size) + size;
    }
    return total;
}

/* The second walk: the columns hold what the first has seen. */
static void
write_records(const Encoding *job, uint8_t *out)
{
    for (int64_t number = 0; number < job->count; number++) {
        int64_t row = job->row[number], length = -1, entry, end;
        const uint8_t *begin = NULL;
        out = write_varint(out, job->sizes[number]);
        *out++ = 0; /* the attributes byte is unused */
        out = write_varint(out, timestamp_delta(job, row));
        out = write_varint(out, job->first + number);
        if (job->has_key)
            (void)bytes_at(&job->key, row, &begin, &length);
        out = write_nullable(out, begin, length);
        (void)bytes_at(&job->value, row, &begin, &length);
        out = write_nullable(out, begin, length);
        (void)headers_at(&job->headers, row, &entry, &end);
        out = write_varint(out, end - entry);
        for (; entry < end; entry++) {
            (void)bytes_at(&job->headers.key, entry, &begin, &length);
            out = write_nullable(out, begin, length);
            (void)bytes_at(&job->headers.value, entry, &begin, &length);
            out = write_nullable(out, begin, length);
        }
    }
}

static int
open_buffer(PyObject *given, Py_buffer *view)
{
    return given == Py_None || PyObject_GetBuffer(given, view, PyBUF_SIMPLE) == 0;
}

static int
is_at(int64_t at)
{
    if (at >= 0 && at <= INT32_MAX)
        return 1;
    PyErr_SetString(PyExc_ValueError, "an array begins outside of its buffers");
    return 0;
}

static int
open_bytes(PyObject *given, Bytes *column)
{
    PyObject *valid, *offsets, *data;
    long long at;
    if (!PyArg_ParseTuple(given, "OOOL:column", &valid, &offsets, &data, &at))
        return 0;
    column->at = at;
    return is_at(at) && open_buffer(valid, &column->valid) && open_buffer(offsets, &column->offsets) &&
           open_buffer(data, &column->data);
}

static int
open_lists(PyObject *given, Lists *lists)
{
    PyObject *valid, *offsets, *key, *value;
    long long at;
    if (given == Py_None)
        return 1;
    if (!PyArg_ParseTuple(given, "OOLO!O!:headers", &valid, &offsets, &at, &PyTuple_Type, &key, &PyTuple_Type, &value))
        return 0;
    lists->given = 1;
    lists->at = at;
    return is_at(at) && open_buffer(valid, &lists->valid) && open_buffer(offsets, &lists->offsets) &&
           open_bytes(key, &lists->key) && open_bytes(value, &lists->value);
}

static void
close_bytes(Bytes *column)
{
    PyBuffer_Release(&column->valid);
    PyBuffer_Release(&column->offsets);
    PyBuffer_Release(&column->data);
}

static void
close_encoding(Encoding *job)
{
    close_bytes(&job->key);
    close_bytes(&job->value);
    close_bytes(&job->headers.key);
    close_bytes(&job->headers.value);
    PyBuffer_Release(&job->headers.valid);
    PyBuffer_Release(&job->headers.offsets);
    PyBuffer_Release(&job->rows);
    PyBuffer_Release(&job->timestamps);
    PyMem_Free(job->sizes);
}

static PyObject *
made_records(Encoding *job)
{
    int64_t size;
    Py_BEGIN_ALLOW_THREADS
    size = measure_records(job);
    Py_END_ALLOW_THREADS
    if (size < 0) {
        PyErr_SetString(PyExc_ValueError, "a row lies outside of its column, or is too large for a record");
        return NULL;
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (made == NULL)
        return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AsString(made);
    Py_BEGIN_ALLOW_THREADS
    write_records(job, out);
    Py_END_ALLOW_THREADS
    return made;
}

static PyObject *
encode(PyObject *module, PyObject *arguments)
{
    Encoding job = {0};
    PyObject *rows, *timestamps, *key, *value, *headers, *made = NULL;
    long long first, base_timestamp;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OLLOOO!O:encode", &rows, &first, &base_timestamp, &timestamps, &key,
                          &PyTuple_Type, &value, &headers))
        return NULL;
    job.first = first;
    job.base_timestamp = base_timestamp;
    job.has_key = key != Py_None;
    if (open_buffer(rows, &job.rows) && open_buffer(timestamps, &job.timestamps) &&
        (!job.has_key || open_bytes(key, &job.key)) && open_bytes(value, &job.value) &&
        open_lists(headers, &job.headers)) {
        job.count = job.rows.len / (int64_t)sizeof(int64_t);
        job.row = job.rows.buf;
        job.timestamp = job.timestamps.buf;
        job.sizes = PyMem_Malloc((size_t)job.count * sizeof(int64_t));
        made = job.sizes == NULL ? PyErr_NoMemory() : made_records(&job);
    }
    close_encoding(&job);
    return made;
}

/* Kafka's murmur2 of a key, without the sign bit. */
static int32_t
murmur2(const uint8_t *key, int64_t length)
{
    const uint32_t factor = 0x5BD1E995;
    uint32_t value = 0x9747B28Cu ^ (uint32_t)length;
    int64_t at = 0;
    for (; at + 4 <= length; at += 4) {
        uint32_t part = (uint32_t)key[at] | (uint32_t)key[at + 1] << 8 | (uint32_t)key[at + 2] << 16 |
                        (uint32_t)key[at + 3] << 24;
        part *= factor;
        part = (part ^ part >> 24) * factor;
        value = value * factor ^ part;
    }
    if (at < length) {
        uint32_t rest = 0;
        for (int shift = 0; at < length; shift += 8)
            rest |= (uint32_t)key[at++] << shift;
        value = (value ^ rest) * factor;
    }
    value = (value ^ value >> 13) * factor;
    return (int32_t)((value ^ value >> 15) & 0x7FFFFFFF);
}

static int
hash_keys(const Bytes *column, int64_t count, int32_t *out)
{
    for (int64_t row = 0; row < count; row++) {
        const uint8_t *begin;
        int64_t length;
        if (!bytes_at(column, row, &begin, &length))
            return 0;
        out[row] = length < 0 ? -1 : murmur2(begin, length);
    }
    return 1;
}

static PyObject *
hashes(PyObject *module, PyObject *arguments)
{
    Bytes column = {0};
    PyObject *key, *made = NULL;
    Py_ssize_t count;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!n:hashes", &PyTuple_Type, &key, &count))
        return NULL;
    if (open_bytes(key, &column) &&
        (made = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int32_t))) != NULL) {
        int32_t *out = (int32_t *)PyBytes_AsString(made);
        int right;
        Py_BEGIN_ALLOW_THREADS
        right = hash_keys(&column, count, out);
        Py_END_ALLOW_THREADS
        if (!right) {
            Py_CLEAR(made);
            PyErr_SetString(PyExc_ValueError, "a row lies outside of its column");
        }
    }
    close_bytes(&column);
    return made;
}

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, "The records of some batches as the buffers of Arrow columns, or None."},
    {"encode", encode, METH_VARARGS, "Rows of Arrow columns as the records of a batch."},
    {"hashes", hashes, METH_VARARGS, "The murmur2 of each key, 31 bits; -1 of null."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "kernel", .m_size = 0, .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC
PyInit_kernel(void)
{
    return PyModuleDef_Init(&definition);
}
