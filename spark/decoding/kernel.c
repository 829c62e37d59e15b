/* The records of some batches as the buffers of Arrow columns: the compiled twin of numpy_decoder.py.

   decode(data, sections, floor, start, end, wanted, allocate) -> None or
       (rows, last_offset, key, value, offset, timestamp, timestamp_type, headers)

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

static PyMethodDef methods[] = {
    {"decode", decode, METH_VARARGS, "The records of some batches as the buffers of Arrow columns, or None."},
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
