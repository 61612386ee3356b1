import assert from 'node:assert/strict'
import { type ChildProcess, fork, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, constants, openSync, readFileSync, writeFileSync } from 'node:fs'
import { Socket } from 'node:net'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import { createLog, type Log, type LogLevel } from '../../dist/telemetry/log.js'
import type { Output } from '../../dist/telemetry/log-writer.js'
import { temporaryDirectorySync } from '../support/directories.ts'
import { HOSTILE, UNSAFE } from '../support/hostile.ts'
import { PATIENCE_MS, until } from '../support/time.ts'

type Line = Readonly<Record<string, unknown>>

const MAX_UNREAD = 2 ** 20

const root = temporaryDirectorySync()
const children = new Set<ChildProcess>()

after(() => {
  for (const child of children) child.kill('SIGKILL')
})

/** A reader that takes the next write at `take`. */
class Sink {
  readonly writes: string[] = []
  readonly #untaken: ((error?: unknown) => void)[] = []

  readonly write: Output = (lines, done) => {
    this.writes.push(String(lines))
    this.#untaken.push(done)
  }

  take(error?: unknown): void {
    const done = this.#untaken.shift() ?? assert.fail('nothing was written')
    done(error)
  }

  /** Every line written so far. */
  get lines(): Line[] {
    return parse(this.writes.join(''))
  }
}

function sinkOf(level: LogLevel = 'info'): { readonly sink: Sink; readonly log: Log } {
  const sink = new Sink()
  return { sink, log: createLog(level, sink.write) }
}

function parse(text: string): Line[] {
  assert.ok(text === '' || text.endsWith('\n'))
  // If a line is no JSON object, this throws or the test's comparison fails.
  const lines = text.split('\n').slice(0, -1)
  return lines.map((line) => JSON.parse(line) as Line)
}

function numbersOf(lines: readonly Line[]): unknown[] {
  return lines.map((line) => line['n'])
}

async function logged(fields: Line): Promise<Line> {
  const { sink, log } = sinkOf()
  log.info('m', fields)
  await nextTick()
  assert.equal(sink.lines.length, 1)
  return sink.lines[0] ?? assert.fail('no line')
}

const circle: Record<string, unknown> = {}
circle['self'] = circle

test('log: a terminal shows a line as it is, and a program reads what was logged', async () => {
  const { sink, log } = sinkOf()
  log.error(HOSTILE, { text: HOSTILE, [HOSTILE]: [HOSTILE], error: new Error(HOSTILE) })
  log.error(HOSTILE, circle)
  await nextTick()
  assert.doesNotMatch(sink.writes.join(''), UNSAFE)
  const { message, text, [HOSTILE]: list, error } = sink.lines[0] ?? {}
  const expected = [HOSTILE, HOSTILE, [HOSTILE], HOSTILE]
  assert.deepEqual([message, text, list, Object(error).message], expected)
})

test('log: a line has time, level and message first; no field replaces them', async () => {
  const line = await logged({ status: 200, message: 'x', level: 'x', time: 'x', path: '"\n' })
  assert.deepEqual(Object.keys(line), ['time', 'level', 'message', 'status', 'path'])
  assert.equal(new Date(String(line['time'])).toISOString(), line['time'])
  const rest = { level: 'info', message: 'm', status: 200, path: '"\n' }
  assert.deepEqual({ ...line, time: 0 }, { time: 0, ...rest })
})

test('log: writes errors with their causes, and bigints as strings', async () => {
  const inner = new RangeError('inner', { cause: 7n })
  const outer = Object.assign(new TypeError('outer', { cause: inner }), { token: 't' })
  const listed = new Error('in a list')
  const { id, error, list } = await logged({ error: outer, id: 2n ** 63n - 1n, list: [1n, listed] })
  assert.equal(id, '9223372036854775807')
  const cause = { name: 'RangeError', message: 'inner', stack: inner.stack, cause: '7' }
  assert.deepEqual(error, { name: 'TypeError', message: 'outer', stack: outer.stack, cause })
  assert.deepEqual(list, ['1', { name: 'Error', message: 'in a list', stack: listed.stack }])
})

const chain = new Error('chain')
chain.cause = chain
const fail = (): never => {
  throw new Error('hostile')
}
const HOSTILE_FIELDS: Readonly<Record<string, object>> = {
  'a circle': circle,
  'a circle of causes': { chain },
  'a getter that throws': Object.defineProperty({}, 'x', { get: fail, enumerable: true }),
  'a toJSON that throws': { x: { toJSON: fail } },
  'a proxy that throws': { proxy: new Proxy({}, { ownKeys: fail }) },
}

for (const [what, fields] of Object.entries(HOSTILE_FIELDS)) {
  test(`log: ${what} is reported, and nothing is thrown`, async () => {
    const line = await logged({ fields })
    assert.deepEqual([line['message'], line['fields']], ['m', 'could not be written as JSON'])
  })
}

const REQUEST = {
  method: 'GET',
  route: '/plants',
  status: 401,
  error: 40102,
  ms: 0.25,
  requestId: '"\\</script>',
  traceId: undefined,
  owner: 'abc',
  aborted: true,
} as const

const LEVELS: readonly (readonly [LogLevel, ...string[]])[] = [
  ['silent'],
  ['error', 'error'],
  ['info', 'error', 'info', 'info'],
  ['debug', 'error', 'info', 'debug', 'info'],
]

for (const [level, ...written] of LEVELS) {
  test(`log: ${level} writes [${written.join(', ')}], and reads no other fields`, async () => {
    const { sink, log } = sinkOf(level)
    for (const own of ['error', 'info', 'debug'] as const) {
      let looked = false
      log[own]('m', {
        get x() {
          return (looked = true)
        },
      })
      assert.equal(looked, written.includes(own))
    }
    log.request(REQUEST)
    await nextTick()
    const { lines } = sink
    const levels = lines.map((line) => line['level'])
    assert.deepEqual(levels, written)
    if (!levels.includes('info')) return
    const { traceId: _, ...request } = REQUEST
    const { time, ...last } = lines.at(-1) ?? assert.fail()
    assert.ok(Math.abs(Date.parse(String(time)) - Date.now()) < 60_000)
    assert.deepEqual(last, { level: 'info', message: 'request', ...request })
  })
}

test('log: writes the lines of one tick at once, in order', async () => {
  const { sink, log } = sinkOf()
  for (let n = 0; n < 100; n++) log.info('n', { n })
  assert.equal(sink.writes.length, 0)
  await nextTick()
  assert.equal(sink.writes.length, 1)
  for (const n of [100, 101]) log.info('n', { n })
  await nextTick()
  assert.deepEqual(numbersOf(sink.lines), [...Array(102).keys()])
  assert.equal(sink.writes.length, 2)
})

test('log: after 1 MiB unread, drops lines, and reports them at the gap', async () => {
  const { sink, log } = sinkOf()
  // Lines of exactly 1,024 bytes.
  const frame = await logged({ n: 1_000_000, pad: '' })
  const pad = 'x'.repeat(1024 - JSON.stringify(frame).length - 1)
  const line = (n: number) => log.info('m', { n, pad })
  line(1_000_000)
  await nextTick()
  assert.equal(sink.writes[0]?.length, 1024)
  for (let n = 1; n < 1024; n++) line(1_000_000 + n)
  assert.equal(log.dropped(), 0, 'exactly 1 MiB fits')
  line(2_000_000)
  assert.equal(log.dropped(), 1)
  log.info('short')
  assert.equal(log.dropped(), 2)
  await nextTick()
  for (const _ of [1, 2]) sink.take()
  // This can never fit.
  log.info('x'.repeat(MAX_UNREAD))
  line(3_000_000)
  assert.equal(log.dropped(), 3, 'there is room again')
  await nextTick()
  const { lines } = sink
  const gap = { time: 0, level: 'error', message: 'log lines were dropped', dropped: 3 }
  assert.deepEqual({ ...lines.splice(1024, 1)[0], time: 0 }, gap)
  const kept = Array.from({ length: 1024 }, (_, n) => 1_000_000 + n)
  assert.deepEqual(numbersOf(lines), [...kept, 3_000_000])
})

test('log: lines of a failed write are reported with the next line', async () => {
  const { sink, log } = sinkOf()
  for (const message of ['a', 'b']) log.info(message)
  await nextTick()
  sink.take(new Error('ENOSPC'))
  assert.equal(log.dropped(), 2)
  assert.equal(sink.writes.length, 1)
  log.info('c')
  await nextTick()
  sink.take(new Error('ENOSPC'))
  assert.equal(log.dropped(), 3)
  log.info('d')
  await nextTick()
  sink.take()
  assert.equal(sink.writes.length, 3)
  assert.match(
    sink.writes[2] ?? '',
    /^\n\{.*"message":"log lines were dropped","dropped":3\}\n\{.*"message":"d"\}\n$/,
  )
})

test('log: flush waits for the reader, at most for its timeout', async (t) => {
  const { sink, log } = sinkOf()
  log.info('a')
  // A log keeps no process alive.
  const keepAlive = setTimeout(() => {}, PATIENCE_MS)
  t.after(() => clearTimeout(keepAlive))
  const start = performance.now()
  await log.flush(50)
  assert.ok(performance.now() - start >= 45)
  assert.equal(sink.lines.length, 1)
  let flushed = false
  const flush = log.flush(PATIENCE_MS).then(() => (flushed = true))
  await nextTick()
  sink.take()
  await nextTick()
  assert.equal(flushed, false, 'only the first flush is done')
  // The end of the first tick wrote nothing more, and the second flush waits for it.
  for (const _ of [1, 2]) sink.take()
  await flush
})

const CHILD = join(root, 'child.mjs')
const LOG_MODULE = new URL('../../dist/telemetry/log.js', import.meta.url).href
writeFileSync(
  CHILD,
  `
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
    process.send({ n, dropped: log.dropped() })
  })
  process.send('ready')`,
)

/** A process with a log, whose stdout is a pipe to this one or a descriptor. */
async function writer(stdout: 'pipe' | number) {
  const child = fork(CHILD, { stdio: ['ignore', stdout, 'inherit', 'ipc'], execArgv: [] })
  children.add(child)
  await once(child, 'message')
  return {
    child,
    /** Writes lines, and returns the number of all that were dropped. */
    async dropped(lines: number, flush = 0) {
      child.send({ lines, flush })
      // What the script above sends.
      return ((await once(child, 'message'))[0] as { readonly dropped: number }).dropped
    },
    /** Flushes and exits: the exit status, and the milliseconds that it took. */
    async exit(flush = PATIENCE_MS): Promise<readonly [number | null, number]> {
      const start = performance.now()
      child.send({ lines: 1, flush, exit: true })
      const [code] = await once(child, 'exit')
      children.delete(child)
      return [typeof code === 'number' ? code : null, performance.now() - start]
    },
  }
}

/** A child's stdout: a socket pair, as Node and systemd make, or a pipe, as shells make. */
async function channel(kind: 'socket' | 'pipe') {
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
    const dropped = await writer.dropped(5_000)
    assert.ok(dropped > 5_000 - 3_000 && dropped < 5_000, `${dropped} dropped`)
    assert.equal(await writer.dropped(0), dropped)
    const [code, took] = await writer.exit(200)
    assert.equal(code, 0)
    assert.ok(took > 150, `exit took ${took} ms`)
    reader.destroy()
  })

  test(`log: a ${kind} read after a stall shows the gap; a closed one ends nothing`, async () => {
    const { writer, reader } = await channel(kind)
    const dropped = await writer.dropped(3_000)
    assert.ok(dropped > 0)
    let text = ''
    reader.setEncoding('utf8').on('data', (chunk) => {
      text += chunk
    })
    await writer.dropped(0, PATIENCE_MS)
    assert.equal(await writer.dropped(100, PATIENCE_MS), dropped)
    await until('the last line is read', () => text.includes('"n":3099,') && text.endsWith('\n'))
    // The reader's buffer may take a part early: then there are several gaps. Each line of a gap
    // says how many lines are missing up to its place.
    let next = 0
    let missing = 0
    for (const { message, n, dropped: gap } of parse(text)) {
      if (message === 'log lines were dropped') {
        next += Number(gap) - missing
        missing = Number(gap)
      } else assert.equal(n, next++)
    }
    assert.deepEqual([next, missing], [3_100, dropped])

    reader.destroy()
    await once(reader, 'close')
    assert.equal(await writer.dropped(2_000, PATIENCE_MS), dropped + 2_000)
    assert.equal(await writer.dropped(1, PATIENCE_MS), dropped + 2_001)
    const [code, took] = await writer.exit()
    assert.equal(code, 0)
    assert.ok(took < PATIENCE_MS - 1000, `exit took ${took} ms`)
  })
}

test('log: a file gets every line', async (t) => {
  const path = join(root, 'file')
  const fd = openSync(path, 'w')
  t.after(() => closeSync(fd))
  const file = await writer(fd)
  await file.dropped(2_000, PATIENCE_MS)
  await file.exit()
  const lines = parse(readFileSync(path, 'utf8'))
  assert.deepEqual(numbersOf(lines), [...Array(2_001).keys()])
})

test('log: a full disk loses lines, which are counted, and nothing else', async (t) => {
  const fd = openSync('/dev/full', 'w')
  t.after(() => closeSync(fd))
  const full = await writer(fd)
  assert.equal(await full.dropped(1_000, PATIENCE_MS), 1_000)
  assert.equal((await full.exit())[0], 0)
})

for (const stdout of ['pipe', 'file'] as const)
  test(`log: while a program replaces stdout.write, it gets the lines: ${stdout}`, async (t) => {
    const path = join(root, `replaced-${stdout}`)
    const script = `
      import { createLog } from ${JSON.stringify(LOG_MODULE)}
      const log = createLog('info')
      log.info('before')
      await log.flush(${PATIENCE_MS})
      const lines = []
      // It never calls back.
      process.stdout.write = (text) => lines.push(text)
      log.info('meanwhile')
      await log.flush(${PATIENCE_MS})
      delete process.stdout.write
      process.stderr.write(lines.join(''))
      log.info('after')
      await log.flush(${PATIENCE_MS})
      process.exit()`
    const fd = stdout === 'file' ? openSync(path, 'w') : 'pipe'
    t.after(() => typeof fd === 'number' && closeSync(fd))
    const child = spawnSync(process.execPath, ['--input-type=module', '-e', script], {
      stdio: ['ignore', fd, 'pipe'],
      encoding: 'utf8',
      timeout: PATIENCE_MS / 2,
    })
    const messages = (text: string): unknown[] => parse(text).map(({ message }) => message)
    const own = typeof fd === 'number' ? readFileSync(path, 'utf8') : child.stdout
    assert.deepEqual([messages(own), messages(child.stderr)], [['before', 'after'], ['meanwhile']])
  })
