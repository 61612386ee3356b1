import assert from 'node:assert/strict'
import { test } from 'node:test'
import { LINES } from '../../dist/cli/lines.js'
import { createLog } from '../../dist/telemetry/log.js'
import { HOSTILE, HOSTILE_ESCAPED } from '../support/hostile.ts'

const REQUEST = {
  method: 'GET',
  route: '/plants',
  status: 200,
  ms: 1.234,
  requestId: 'r',
  traceId: undefined,
  owner: 'abc',
  error: undefined,
  aborted: undefined,
} as const

/** What a log of lines for people writes, without the times. */
async function written(write: (log: ReturnType<typeof createLog>) => void): Promise<string[]> {
  const chunks: string[] = []
  const take = (text: unknown, done: () => void): void => (chunks.push(String(text)), done())
  const log = createLog('info', take, LINES)
  write(log)
  await log.flush(1000)
  const lines = chunks.join('').split('\n').slice(0, -1)
  for (const line of lines) assert.match(line, /^\d\d:\d\d:\d\d \S/)
  return lines.map((line) => line.slice('00:00:00 '.length))
}

test('lines: a request has method, path, status, time, and its error if any', async () => {
  const refused = { ...REQUEST, method: 'DELETE', status: 405, ms: 0.04, error: 40501 }
  const lines = await written((log) => {
    log.request(REQUEST)
    log.request(refused)
    log.request({ ...REQUEST, method: undefined, route: undefined, status: 400 })
    log.request({ ...REQUEST, aborted: true })
  })
  assert.deepEqual(lines, [
    'GET     /plants 200 1.2 ms',
    'DELETE  /plants 405 0.0 ms error 40501',
    '-       - 400 1.2 ms',
    'GET     /plants 200 1.2 ms aborted',
  ])
})

test('lines: fields follow the message, causes in one line, and controls are escaped', async () => {
  const error = new Error('outer', { cause: new Error('inner\x1b[2J\nforged') })
  const circle: { self?: unknown } = {}
  circle.self = circle
  const lines = await written((log) => {
    log.error('it failed', { error, byte: 7n, where: undefined })
    log.info('listening', { plants: 'http://127.0.0.1:8080', recovered: { plants: 2n } })
    log.info('circle', { circle })
    log.debug('not at this level')
  })
  assert.deepEqual(lines, [
    'ERROR it failed error=outer: inner\\u001b[2J\\u000aforged byte=7',
    'listening plants=http://127.0.0.1:8080 recovered={ plants: 2n }',
    'circle circle=<ref *1> { self: [Circular *1] }',
  ])
})

const escapeOfNode = (_: string, hex: string): string => `\\x${hex.toUpperCase()}`

test('lines: a text from outside is escaped, alone, in an object and in a message', async () => {
  const lines = await written((log) => {
    log.error(`failed: ${HOSTILE}`, { reason: HOSTILE, inner: { reason: HOSTILE } })
  })
  // Inside an object, Node escapes controls in its own way.
  const lineEnd = HOSTILE_ESCAPED.replace('\\u000a', '\\n')
  const inner = lineEnd.replace(/\\u00([0-9a-f]{2})/g, escapeOfNode)
  assert.deepEqual(lines, [
    `ERROR failed: ${HOSTILE_ESCAPED} reason=${HOSTILE_ESCAPED} inner={ reason: '${inner}' }`,
  ])
})
