import assert from 'node:assert/strict'
import { type ChildProcess, fork, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import {
  closeSync,
  constants,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Readable } from 'node:stream'
import { after, test } from 'node:test'
import { setImmediate as nextTick, setTimeout as delay } from 'node:timers/promises'
import { createLog } from '../../dist/telemetry/log.js'
import type { Output } from '../../dist/telemetry/log-writer.js'
import { HOSTILE, UNSAFE } from '../support/hostile.ts'
import { PATIENCE_MS, until } from '../support/time.ts'

const MAX_UNREAD = 2 ** 20

const root = mkdtempSync(join(tmpdir(), 'plants-log-'))
const children = new Set<ChildProcess>()

after(() => {
  for (const child of children) child.kill('SIGKILL')
  rmSync(root, { recursive: true, force: true })
})

/** A reader that takes the next write at `take`. */
class Sink implements Output {
  readonly writes: string[] = []
  writableLength = 0
  readonly #untaken: (readonly [bytes: number, done: (error?: unknown) => void])[] = []

  write(lines: string, done: (error?: unknown) => void): void {
    this.writes.push(lines)
    this.writableLength += lines.length
    this.#untaken.push([lines.length, done])
  }

  take(error?: unknown): void {
    const [bytes, done] = this.#untaken.shift() ?? assert.fail('nothing was written')
    this.writableLength -= bytes
    done(error)
  }

  /** Every line written so far. */
  get lines(): Readonly<Record<string, unknown>>[] {
    return parse(this.writes.join(''))
  }
}

function parse(text: string): Readonly<Record<string, unknown>>[] {
  assert.ok(text === '' || text.endsWith('\n'))
  // If a line is no JSON object, this throws or the test's comparison fails.
  return text
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line) as Readonly<Record<string, unknown>>)
}

async function logged(
  fields: Readonly<Record<string, unknown>>,
): Promise<Readonly<Record<string, unknown>>> {
  const sink = new Sink()
  createLog('info', sink).info('m', fields)
  await nextTick()
  const [line, ...more] = sink.lines
  assert.equal(more.length, 0)
  return line ?? assert.fail('no line')
}

test('log: a terminal shows a line as it is, and a program reads what was logged', async () => {
  const sink = new Sink()
  const log = createLog('info', sink)
  const circle: Record<string, unknown> = {}
  circle['circle'] = circle
  log.error(HOSTILE, { text: HOSTILE, [HOSTILE]: [HOSTILE], error: new Error(HOSTILE) })
  log.error(HOSTILE, circle)
  await nextTick()
  assert.doesNotMatch(sink.writes.join(''), UNSAFE)
  const [line] = sink.lines
  // As `render` writes it.
  const { message } = line?.['error'] as { readonly message: string }
  assert.deepEqual(
    [line?.['message'], line?.['text'], line?.[HOSTILE], message],
    [HOSTILE, HOSTILE, [HOSTILE], HOSTILE],
  )
})

test('log: a line has time, level and message, then the fields', async () => {
  const line = await logged({ status: 200, path: '/plants\n"', gone: undefined })
  assert.deepEqual(Object.keys(line), ['time', 'level', 'message', 'status', 'path'])
  assert.equal(new Date(String(line['time'])).toISOString(), line['time'])
  assert.deepEqual(
    { ...line, time: 0 },
    { time: 0, level: 'info', message: 'm', status: 200, path: '/plants\n"' },
  )
})

test('log: fields do not replace time, level or message', async () => {
  const line = await logged({ message: 'x', level: 'x', time: 'x', other: 1 })
  assert.deepEqual([line['message'], line['level'], line['other']], ['m', 'info', 1])
  assert.notEqual(line['time'], 'x')
})

test('log: writes errors with their causes, and bigints as strings', async () => {
  const error = new TypeError('outer', { cause: new RangeError('inner', { cause: 7n }) })
  const secret = Object.assign(new Error('e'), { token: 't' })
  const line = await logged({
    error,
    id: 2n ** 63n - 1n,
    list: [1n, new Error('in a list')],
    secret,
  })
  assert.equal(line['id'], '9223372036854775807')
  assert.deepEqual(line['error'], {
    name: 'TypeError',
    message: 'outer',
    stack: error.stack,
    cause: {
      name: 'RangeError',
      message: 'inner',
      stack: error.cause instanceof Error ? error.cause.stack : '',
      cause: '7',
    },
  })
  assert.match(JSON.stringify(line['list']), /^\["1",\{"name":"Error","message":"in a list"/)
  assert.doesNotMatch(JSON.stringify(line), /token/)
})

test('log: never throws, and reports a field that cannot be written', async () => {
  const circle: Record<string, unknown> = {}
  circle['self'] = circle
  const chain = new Error('chain')
  chain.cause = chain
  const fail = () => {
    throw new Error('hostile')
  }
  const proxy = new Proxy({}, { ownKeys: fail })
  const hostile = [
    circle,
    { chain },
    {
      get x() {
        return fail()
      },
    },
    { x: { toJSON: fail } },
    { proxy },
  ]
  for (const fields of hostile) {
    const line = await logged({ fields })
    assert.deepEqual([line['message'], line['fields']], ['m', 'could not be written as JSON'])
  }
  assert.equal((await logged({ x: '\ud800', f: () => 1, s: Symbol('s'), n: NaN }))['x'], '\ud800')
})

test('log: a level includes all graver levels', async () => {
  const all = ['error', 'info', 'debug'] as const
  const levels = [
    ['silent', []],
    ['error', all.slice(0, 1)],
    ['info', all.slice(0, 2)],
    ['debug', all],
  ] as const
  for (const [level, expected] of levels) {
    const sink = new Sink()
    const log = createLog(level, sink)
    log.error('e')
    log.info('i')
    log.debug('d', {
      get x() {
        return level === 'debug' ? 1 : assert.fail('a level that is off looks at no field')
      },
    })
    await nextTick()
    assert.deepEqual(
      sink.lines.map((line) => line['level']),
      expected,
    )
  }
})

test('log: writes the lines of one tick at once, in order', async () => {
  const sink = new Sink()
  const log = createLog('info', sink)
  for (let n = 0; n < 100; n++) log.info('n', { n })
  assert.equal(sink.writes.length, 0)
  await nextTick()
  assert.equal(sink.writes.length, 1)
  log.info('n', { n: 100 })
  log.info('n', { n: 101 })
  await nextTick()
  assert.deepEqual(
    sink.lines.map((line) => line['n']),
    [...Array(102).keys()],
  )
  assert.equal(sink.writes.length, 2)
})

test('log: after 1 MiB unread, drops lines, and reports them at the gap', async () => {
  const sink = new Sink()
  const log = createLog('info', sink)
  // Lines of exactly 1,024 bytes.
  const frame = await logged({ n: 1_000_000, pad: '' })
  const pad = 'x'.repeat(1024 - JSON.stringify(frame).length - 1)
  const line = (n: number) => log.info('m', { n, pad })
  line(1_000_000)
  await nextTick()
  assert.equal(sink.writes[0]?.length, 1024)
  for (let n = 1; n < 1024; n++) line(1_000_000 + n)
  assert.equal(log.dropped, 0, 'exactly 1 MiB fits')
  line(2_000_000)
  assert.equal(log.dropped, 1)
  log.info('short')
  assert.equal(log.dropped, 2)
  await nextTick()
  for (const _ of [1, 2]) sink.take()
  line(3_000_000)
  assert.equal(log.dropped, 2, 'there is room again')
  await nextTick()
  const lines = sink.lines
  assert.deepEqual(
    lines.slice(0, 1024).map((each) => each['n']),
    Array.from({ length: 1024 }, (_, n) => 1_000_000 + n),
  )
  assert.deepEqual(
    { ...lines[1024], time: 0 },
    { time: 0, level: 'error', message: 'log lines were dropped', dropped: 2 },
  )
  assert.equal(lines[1025]?.['n'], 3_000_000)
  assert.equal(lines.length, 1026)
})

test('log: drops and reports a line that can never fit, writes the next', async () => {
  const sink = new Sink()
  const log = createLog('info', sink)
  log.info('x'.repeat(MAX_UNREAD))
  log.info('next')
  await nextTick()
  assert.deepEqual(
    sink.lines.map((line) => line['message']),
    ['log lines were dropped', 'next'],
  )
})

test('log: lines of a failed write are reported with the next line', async () => {
  const sink = new Sink()
  const log = createLog('info', sink)
  for (const message of ['a', 'b']) log.info(message)
  await nextTick()
  sink.take(new Error('ENOSPC'))
  assert.equal(log.dropped, 2)
  assert.equal(sink.writes.length, 1)
  log.info('c')
  await nextTick()
  sink.take(new Error('ENOSPC'))
  assert.equal(log.dropped, 3)
  log.info('d')
  await nextTick()
  sink.take()
  assert.equal(sink.writes.length, 3)
  assert.match(
    sink.writes[2] ?? '',
    /^\n\{.*"message":"log lines were dropped","dropped":3\}\n\{.*"message":"d"\}\n$/,
  )
})

test('log: flush waits for the reader, at most for its timeout', async () => {
  const sink = new Sink()
  const log = createLog('info', sink)
  log.info('a')
  // A log keeps no process alive.
  const keepAlive = setTimeout(() => {}, PATIENCE_MS)
  const start = performance.now()
  await log.flush(50)
  assert.ok(performance.now() - start >= 45)
  assert.deepEqual(
    sink.lines.map((line) => line['message']),
    ['a'],
  )
  let flushed = false
  const flush = log.flush(PATIENCE_MS).then(() => (flushed = true))
  await nextTick()
  sink.take()
  await nextTick()
  assert.equal(flushed, false, 'only the first flush is done')
  // The end of the first tick wrote nothing more, and the second flush waits behind it.
  for (const _ of [1, 2]) sink.take()
  await flush
  clearTimeout(keepAlive)
})

const CHILD = join(root, 'child.mjs')
const LOG_MODULE = new URL('../../dist/telemetry/log.js', import.meta.url).href
const SCRIPT = `
  import { createLog } from ${JSON.stringify(LOG_MODULE)}
  const log = createLog('info')
  let n = 0
  process.on('message', async ({ lines = 0, exit = false, flush = 0 }) => {
    for (let i = 0; i < lines; i++) {
      log.info('line', { n: n++, pad: 'x'.repeat(1000) })
      if (i % 100 === 99) await new Promise(setImmediate)
    }
    await log.flush(flush)
    if (exit) process.exit(0)
    process.send({ n, dropped: log.dropped, cpu: process.cpuUsage().user })
  })
  process.send('ready')`

interface State {
  readonly n: number
  readonly dropped: number
  readonly cpu: number
}

interface Writer {
  readonly child: ChildProcess
  tell(message: {
    readonly lines?: number
    readonly flush?: number
    readonly exit?: boolean
  }): Promise<State>
  /** Flushes and exits: the exit status, and the milliseconds that it took. */
  exit(flushMs?: number): Promise<readonly [number | null, number]>
}

async function writer(stdout: 'pipe' | number): Promise<Writer> {
  writeFileSync(CHILD, SCRIPT)
  const child = fork(CHILD, { stdio: ['ignore', stdout, 'inherit', 'ipc'], execArgv: [] })
  children.add(child)
  await once(child, 'message')
  return {
    child,
    async tell(message) {
      child.send(message)
      // What the script above sends.
      return (await once(child, 'message'))[0] as State
    },
    async exit(flushMs = PATIENCE_MS) {
      const start = performance.now()
      child.send({ lines: 1, flush: flushMs, exit: true })
      const [code] = await once(child, 'exit')
      children.delete(child)
      return [typeof code === 'number' ? code : null, performance.now() - start]
    },
  }
}

/** A child's stdout: a socket pair, as Node and systemd make, or a pipe, as shells make. */
async function channel(
  kind: 'socket' | 'pipe',
): Promise<{ readonly writer: Writer; readonly reader: Readable }> {
  if (kind === 'socket') {
    const made = await writer('pipe')
    return { writer: made, reader: made.child.stdout ?? assert.fail() }
  }
  const path = join(root, `fifo-${Math.random()}`)
  assert.equal(spawnSync('mkfifo', [path]).status, 0)
  const read = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  const write = openSync(path, constants.O_WRONLY)
  const made = await writer(write)
  closeSync(write)
  return { writer: made, reader: new Socket({ fd: read, writable: false }) }
}

for (const kind of ['socket', 'pipe'] as const) {
  test(`log: a ${kind} without a reader blocks neither the process nor its exit`, async () => {
    const { writer, reader } = await channel(kind)
    const state = await writer.tell({ lines: 5_000 })
    assert.ok(state.dropped > 5_000 - 3_000 && state.dropped < 5_000, `${state.dropped} dropped`)
    assert.equal((await writer.tell({})).dropped, state.dropped)
    const [code, took] = await writer.exit(1000)
    assert.equal(code, 0)
    assert.ok(took > 900, `exit took ${took} ms`)
    reader.destroy()
  })

  test(`log: a ${kind} read after a stall shows the gap; a closed one ends nothing`, async () => {
    const { writer, reader } = await channel(kind)
    const { dropped } = await writer.tell({ lines: 3_000 })
    assert.ok(dropped > 0)
    let text = ''
    reader.setEncoding('utf8').on('data', (chunk) => {
      text += chunk
    })
    await writer.tell({ flush: PATIENCE_MS })
    assert.deepEqual(
      await writer.tell({ lines: 100, flush: PATIENCE_MS }).then(({ n, dropped }) => [n, dropped]),
      [3_100, dropped],
    )
    await until('the last line is read', () => text.includes('"n":3099,') && text.endsWith('\n'))
    const lines = parse(text)
    // The reader's buffer may take a part early: then there are several gaps. Each line of a gap
    // says how many lines are missing at its place.
    let next = 0
    let missing = 0
    for (const { message, n, dropped: gap } of lines) {
      if (message === 'log lines were dropped') {
        next += Number(gap)
        missing += Number(gap)
      } else assert.equal(n, next++)
    }
    assert.deepEqual([next, missing], [3_100, dropped])

    reader.destroy()
    await once(reader, 'close')
    const before = await writer.tell({ lines: 2_000, flush: PATIENCE_MS })
    assert.equal(before.dropped, dropped + 2_000)
    await delay(300)
    const later = await writer.tell({ lines: 1, flush: PATIENCE_MS })
    assert.equal(later.dropped, dropped + 2_001)
    assert.ok(later.cpu - before.cpu < 150_000, `${later.cpu - before.cpu} µs of CPU in 300 ms`)
    const [code, took] = await writer.exit()
    assert.equal(code, 0)
    assert.ok(took < PATIENCE_MS - 1000, `exit took ${took} ms`)
  })
}

test('log: a file gets every line', async () => {
  const path = join(root, 'file')
  const fd = openSync(path, 'w')
  const file = await writer(fd)
  await file.tell({ lines: 2_000, flush: PATIENCE_MS })
  await file.exit()
  closeSync(fd)
  assert.deepEqual(
    parse(readFileSync(path, 'utf8')).map((line) => line['n']),
    [...Array(2_001).keys()],
  )
})

test('log: a full disk loses lines, which are counted, and nothing else', async () => {
  const fd = openSync('/dev/full', 'w')
  const full = await writer(fd)
  assert.equal((await full.tell({ lines: 1_000, flush: PATIENCE_MS })).dropped, 1_000)
  assert.equal((await full.exit())[0], 0)
  closeSync(fd)
})

test('log: the line of a request is JSON with any id, at level info', async () => {
  const written: string[] = []
  const sink = { write: (lines: string, done: () => void) => (written.push(lines), done()) }
  const line = {
    method: 'GET',
    route: '/plants',
    status: 401,
    error: 40102,
    ms: 0.25,
    requestId: '"\\</script>',
    traceId: '4bf92f3577b34da6a3ce929d0e0e4736',
    owner: 'abc',
    aborted: true,
  } as const
  const [loud, quiet] = [createLog('info', sink), createLog('error', sink)]
  loud.request(line)
  loud.request({
    ...line,
    method: undefined,
    route: undefined,
    error: undefined,
    traceId: undefined,
    owner: undefined,
    aborted: undefined,
  })
  quiet.request(line)
  await Promise.all([loud.flush(PATIENCE_MS), quiet.flush(PATIENCE_MS)])
  const lines = written
    .join('')
    .trimEnd()
    .split('\n')
    .map((text) => JSON.parse(text) as Record<string, unknown>)
  assert.equal(lines.length, 2)
  const { time, ...first } = lines[0] ?? {}
  assert.ok(Math.abs(Date.parse(String(time)) - Date.now()) < 60_000)
  assert.deepEqual(first, { level: 'info', message: 'request', ...line })
  assert.deepEqual(Object.keys(lines[1] ?? {}), [
    'time',
    'level',
    'message',
    'status',
    'ms',
    'requestId',
  ])
})
