import assert from 'node:assert/strict'
import { test } from 'node:test'
import { startService } from '../support/service.ts'
import { converse, head } from '../support/wire.ts'

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
const PARENT = '00f067aa0ba902b7'

/** What a client sends, and the trace that is logged. */
const CASES: readonly (readonly [
  name: string,
  lines: readonly string[],
  traceId: string | undefined,
])[] = [
  ['none', [], undefined],
  ['sampled', [`traceparent: 00-${TRACE}-${PARENT}-01`], TRACE],
  ['not sampled, with other flags', [`traceparent: 00-${TRACE}-${PARENT}-f2`], TRACE],
  ['the name in other letters', [`TraceParent: 00-${TRACE}-${PARENT}-01`], TRACE],
  ['spaces around it', [`traceparent:   00-${TRACE}-${PARENT}-01 \t`], TRACE],
  [
    'twice',
    [`traceparent: 00-${TRACE}-${PARENT}-01`, `traceparent: 00-${TRACE}-${PARENT}-01`],
    undefined,
  ],
  ['a list', [`traceparent: 00-${TRACE}-${PARENT}-01, 00-${TRACE}-${PARENT}-01`], undefined],
  ['empty', ['traceparent:'], undefined],
  ['a trace of zeros', [`traceparent: 00-${'0'.repeat(32)}-${PARENT}-01`], undefined],
  ['a parent of zeros', [`traceparent: 00-${TRACE}-${'0'.repeat(16)}-01`], undefined],
  ['capitals', [`traceparent: 00-${TRACE.toUpperCase()}-${PARENT}-01`], undefined],
  ['a capital in the parent', [`traceparent: 00-${TRACE}-00F067aa0ba902b7-01`], undefined],
  ['a capital in the flags', [`traceparent: 00-${TRACE}-${PARENT}-0A`], undefined],
  ['a short trace', [`traceparent: 00-${TRACE.slice(1)}-${PARENT}-01`], undefined],
  ['a long trace', [`traceparent: 00-${TRACE}0-${PARENT}-01`], undefined],
  ['no flags', [`traceparent: 00-${TRACE}-${PARENT}`], undefined],
  ['version 00 with another field', [`traceparent: 00-${TRACE}-${PARENT}-01-more`], undefined],
  ['version 00 with a dash at the end', [`traceparent: 00-${TRACE}-${PARENT}-01-`], undefined],
  ['a later version', [`traceparent: cc-${TRACE}-${PARENT}-01`], TRACE],
  [
    'a later version with another field',
    [`traceparent: 01-${TRACE}-${PARENT}-01-what-the-future-brings`],
    TRACE,
  ],
  [
    'a later version with another field, without a dash',
    [`traceparent: 01-${TRACE}-${PARENT}-01more`],
    undefined,
  ],
  ['version ff', [`traceparent: ff-${TRACE}-${PARENT}-01`], undefined],
  ['a version of capitals', [`traceparent: CC-${TRACE}-${PARENT}-01`], undefined],
  ['something else', ['traceparent: "},{"level":"error'], undefined],
]

test('trace: the log names the trace of a valid traceparent, and of no other', async (t) => {
  const { port, logLines } = await startService(t)
  for (const [name, lines, traceId] of CASES) {
    const before = logLines.length
    await converse(port, head('GET', '/plants', { lines: ['Request-Id: traced', ...lines] }))
    while (logLines.length === before) await new Promise((resolve) => setImmediate(resolve))
    // The service's own line.
    const line = JSON.parse(logLines[before] ?? '') as Record<string, unknown>
    assert.deepEqual([line['status'], line['traceId']], [200, traceId], name)
    assert.equal('traceId' in line, traceId !== undefined, name)
  }
})

test('trace: a CONNECT, which is never routed, is logged with its trace', async (t) => {
  const { port, logLines } = await startService(t)
  await converse(port, head('CONNECT', 'a:1', { lines: [`traceparent: 00-${TRACE}-${PARENT}-01`] }))
  while (!logLines.some((line) => line.includes('"CONNECT"')))
    await new Promise((resolve) => setImmediate(resolve))
  assert.match(
    logLines.join('\n'),
    new RegExp(`"method":"CONNECT","status":501,.*"traceId":"${TRACE}"`),
  )
})
