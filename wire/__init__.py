"""The Kafka protocol: record batches, requests and responses, error codes.  Bytes in, values out; no I/O and
no clock.

`errors` codes, `records` batch v2 and markers, `record_check` what a client may put into a batch,
`compression` the codecs, `api` what is served in which version, `codec` headers and all messages by kio's
schemas (`schema`, `encode`, `skim`), `produce` and `fetch` the hot messages by hand (`primitives`).
"""
