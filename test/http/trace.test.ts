import assert from 'node:assert/strict'
import { test } from 'node:test'
import { traceIdOf } from '../../dist/http/headers.js'
import { startService } from '../support/service.ts'
import { until } from '../support/time.ts'
import { converse, head } from '../support/wire.ts'

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'
const PARENT = '00f067aa0ba902b7'
const VALID = `00-${TRACE}-${PARENT}-01`

/** Each with what a client sends, in as many headers, and with the trace that is logged. */
const CASES: Readonly<Record<string, readonly [sent: readonly string[], traceId?: string]>> = {
  none: [[]],
  sampled: [[VALID], TRACE],
  'not sampled, with other flags': [[`00-${TRACE}-${PARENT}-f2`], TRACE],
  twice: [[VALID, VALID]],
  'a list': [[`${VALID}, ${VALID}`]],
  empty: [['']],
  'a trace of zeros': [[`00-${'0'.repeat(32)}-${PARENT}-01`]],
  'a parent of zeros': [[`00-${TRACE}-${'0'.repeat(16)}-01`]],
  capitals: [[`00-${TRACE.toUpperCase()}-${PARENT}-01`]],
  'a capital in the parent': [[`00-${TRACE}-00F067aa0ba902b7-01`]],
  'a capital in the flags': [[`00-${TRACE}-${PARENT}-0A`]],
  'a short trace': [[`00-${TRACE.slice(1)}-${PARENT}-01`]],
  'a long trace': [[`00-${TRACE}0-${PARENT}-01`]],
  'no flags': [[`00-${TRACE}-${PARENT}`]],
  'version 00 with another field': [[`${VALID}-more`]],
  'version 00 with a dash at the end': [[`${VALID}-`]],
  'a later version': [[`cc-${TRACE}-${PARENT}-01`], TRACE],
  'a later version with another field': [[`01-${TRACE}-${PARENT}-01-what-may-come`], TRACE],
  'a later version with a field without a dash': [[`01-${TRACE}-${PARENT}-01more`]],
  'version ff': [[`ff-${TRACE}-${PARENT}-01`]],
  'a version of capitals': [[`CC-${TRACE}-${PARENT}-01`]],
  'something else': [['"},{"level":"error']],
}

for (const [name, [sent, traceId]] of Object.entries(CASES))
  test(`trace: ${name}: it is ${traceId ? 'read' : 'ignored'}`, () => {
    const headers = sent.flatMap((value) => ['TraceParent', value])
    assert.equal(traceIdOf(['Host', 'a', ...headers]), traceId)
  })

// A CONNECT is never routed.
for (const [method, target, status] of [
  ['GET', '/plants', 200],
  ['CONNECT', 'a:1', 501],
] as const)
  test(`trace: the line of a ${method} in the log has its trace, if there is one`, async (t) => {
    const { port, logLines } = await startService(t)
    const seen: unknown[] = []
    for (const lines of [[`traceparent:   ${VALID} \t`], []]) {
      await converse(port, head(method, target, { lines }))
      await until('it is logged', () => logLines.length > seen.length)
      // The service's own line.
      const line = JSON.parse(logLines.at(-1) ?? '') as Record<string, unknown>
      seen.push([line['status'], 'traceId' in line, line['traceId']])
    }
    assert.deepEqual(seen, [
      [status, true, TRACE],
      [status, false, undefined],
    ])
  })
