import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { constants } from 'node:http2'
import { type AddressInfo, createServer, type Server } from 'node:net'
import { test, type TestContext } from 'node:test'
import { AnswerTooLong, Channels, EtcdRefusal } from '../../../dist/store/etcd/grpc.js'
import { } from '../../../dist/store/etcd/protobuf.js'
import { NO_TLS } from '../../support/etcd-store.ts'
import { serving } from '../../support/serving.ts'
import { type GrpcReply, servingGrpc, written } from '../../support/serving-grpc.ts'
import { PATIENCE_MS, until } from '../../support/time.ts'

const ANSWER = written([[1, 'x'.repeat(1000)]])

interface Limits {
  readonly timeoutMs?: number
  readonly maxBytes?: number
  readonly message?: Buffer
}

function portOf(server: Server): number {
  // It listens on TCP.
  return (server.address() as AddressInfo).port
}

/** Asks an endpoint; all calls of a test share the connections. */
function asking(t: TestContext) {
  const channels = new Channels(NO_TLS)
  t.after(() => channels.close())
  return (endpoint: string, limits: Limits = {}): Promise<Buffer> => {
    const defaults = { timeoutMs: PATIENCE_MS, maxBytes: Infinity, message: Buffer.of() }
    return channels.ask(endpoint, { path: '/x', token: '', ...defaults, ...limits })
  }
}

test('calls at the same time share one connection, and each has its own answer', async (t) => {
  const sessions = new Set<unknown>()
  const endpoint = await servingGrpc(t, ({ message, session }) => {
    sessions.add(session)
    return message
  })
  const ask = asking(t)
  const messages = Array.from({ length: 100 }, (_, i) => Buffer.from(`${i}`))
  const answers = await Promise.all(messages.map((message) => ask(endpoint, { message })))
  assert.deepEqual(answers, messages)
  assert.equal(sessions.size, 1)
})

test('after a call that timed out, the next one has a new connection', async (t) => {
  // The first connection is as good as dead: nothing ends it, and nothing comes back.
  let first: unknown
  const endpoint = await servingGrpc(t, ({ session }) => {
    first ??= session
    return session === first ? 'hang' : ANSWER
  })
  const ask = asking(t)
  const hanging = ask(endpoint, { timeoutMs: PATIENCE_MS })
  hanging.catch(() => {})
  await assert.rejects(ask(endpoint, { timeoutMs: 100 }), /timed out/)
  assert.deepEqual(await ask(endpoint), ANSWER)
})

/** Asks three times, and says how many more files are open then than after the first time. */
const ASK_IN_VAIN = `
import { setTimeout as sleep } from 'node:timers/promises'
import { Channels } from '${import.meta.resolve('../../../dist/store/etcd/grpc.js')}'
import { readdirSync } from 'node:fs'
const channels = new Channels({})
const limits = { timeoutMs: 200, maxBytes: Infinity }
const attempt = { path: '/x', message: Buffer.alloc(2 ** 24), token: '', ...limits }
const ask = () => channels.ask(process.argv[1], attempt).catch(({ message }) => message)
const openFiles = () => readdirSync('/proc/self/fd').length
// The first call opens files of Node's own too.
const said = [await ask()]
await sleep(50)
const before = openFiles()
said.push(await ask(), await ask())
await sleep(50)
const left = openFiles() - before
const last = ask()
channels.close()
said.push(await last)
console.log(JSON.stringify({ left, said }))
`
/** RFC 9113 §6.5, §6.9: SETTINGS and WINDOW_UPDATE that take as much as may ever be sent. */
const WIDE_WINDOWS = Buffer.from('00000604000000000000047fffffff0000040800000000007fff0000', 'hex')

for (const scheme of ['http', 'https'])
  test(`${scheme}: a member that takes no bytes keeps no socket, no process`, async (t) => {
    const server = createServer({ pauseOnConnect: true }, (socket) => {
      // To TLS these bytes would be an error: there the handshake hangs.
      if (scheme === 'http') socket.write(WIDE_WINDOWS)
      socket.on('error', () => {})
    }).listen(0, '127.0.0.1')
    t.after(() => server.close())
    await once(server, 'listening')
    const endpoint = `${scheme}://127.0.0.1:${portOf(server)}`
    const args = ['--input-type=module', '-e', ASK_IN_VAIN, endpoint]
    const child = spawn(process.execPath, args, { timeout: PATIENCE_MS })
    let stdout = ''
    child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text))
    const [status] = await once(child, 'close')
    const timedOut = `${endpoint} timed out`
    const ended = 'The pending stream has been canceled (caused by: The operation was aborted)'
    assert.deepEqual(JSON.parse(stdout), { left: 0, said: [timedOut, timedOut, timedOut, ended] })
    assert.equal(status, 0, 'it ends by itself')
  })

test('a close fails all calls at once, also those on a connection that was replaced', async (t) => {
  const channels = new Channels(NO_TLS)
  const endpoint = await servingGrpc(t, () => 'hang')
  const attempt = { path: '/x', message: Buffer.of(), token: '', maxBytes: Infinity }
  const older = channels.ask(endpoint, { ...attempt, timeoutMs: PATIENCE_MS })
  const timedOut = channels.ask(endpoint, { ...attempt, timeoutMs: 50 })
  await assert.rejects(timedOut, /timed out/)
  const newer = channels.ask(endpoint, { ...attempt, timeoutMs: PATIENCE_MS })
  channels.close()
  await assert.rejects(older)
  await assert.rejects(newer)
})

test('a member may send a plant of 16 MiB without a round trip, and push nothing', async (t) => {
  const endpoint = await servingGrpc(t, async ({ session }) => {
    await until('the window of all answers is known', () => {
      return Number(session.state.remoteWindowSize) >= 60 * 2 ** 20
    })
    const { initialWindowSize, enablePush } = session.remoteSettings
    return written([[1, initialWindowSize ?? 0], [2, Number(enablePush)]])
  })
  assert.deepEqual(await asking(t)(endpoint), written([[1, 16 * 2 ** 20], [2, 0]]))
})

test('a connection that its member ends is replaced; calls under way fail', async (t) => {
  const endpoint = await servingGrpc(t, ({ session }) => {
    session.close()
    return ANSWER
  })
  const ask = asking(t)
  for (let i = 0; i < 3; i++) assert.deepEqual(await ask(endpoint), ANSWER)
  const cutting = await servingGrpc(t, ({ session }) => {
    session.destroy()
    return 'hang'
  })
  for (let i = 0; i < 2; i++) await assert.rejects(ask(cutting), /without a gRPC status/)
})

test('64 calls of 1 MiB each are sent at once', async (t) => {
  const endpoint = await servingGrpc(t, ({ message }) => written([[1, message.length]]))
  const ask = asking(t)
  const message = Buffer.alloc(2 ** 20)
  const answers = await Promise.all(Array.from({ length: 64 }, () => ask(endpoint, { message })))
  for (const answer of answers) assert.deepEqual(answer, written([[1, message.length]]))
})

test('an answer is refused one byte above its limit, and taken at it', async (t) => {
  const endpoint = await servingGrpc(t, () => ANSWER)
  const ask = asking(t)
  const maxBytes = ANSWER.length + '\0\0\0\0\0'.length
  assert.deepEqual(await ask(endpoint, { maxBytes }), ANSWER)
  await assert.rejects(ask(endpoint, { maxBytes: maxBytes - 1 }), AnswerTooLong)
})

test('only etcd refuses: every other bad answer may be asked for again', async (t) => {
  const ask = asking(t)
  const endpoint = await servingGrpc(t, () => reply)
  let reply: GrpcReply = { code: 3, message: 'y'.repeat(300) }
  await assert.rejects(ask(endpoint), (error) => {
    return error instanceof EtcdRefusal && error.message === 'y'.repeat(200)
  })
  for (const [bad, message] of [
    [[200, 'text'], 'etcd answered 200, without a gRPC status'],
    [[502, 'secret'], 'etcd answered 502, without a gRPC status'],
    ['cut', 'etcd answered 200, without a gRPC status'],
    [{ code: 1, message: 'context canceled' }, 'context canceled'],
    [{ code: 14, message: 'etcdserver: no leader' }, 'etcdserver: no leader'],
    [{ code: 8, message: 'etcdserver: too many requests' }, 'etcdserver: too many requests'],
    [{ code: 2, message: '' }, 'etcd answered with code 2'],
  ] as const) {
    reply = bad
    await assert.rejects(ask(endpoint), { name: 'Error', message })
  }
})

test('a status of 0 is a success only as "0", and with the status 200 of HTTP', async (t) => {
  let headers = {}
  const endpoint = await servingGrpc(t, ({ stream }) => {
    stream.respond(headers, { waitForTrailers: true })
    stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': status }))
    stream.end(Buffer.from('000000000161', 'hex'))
    return 'hang'
  })
  const ask = asking(t)
  let status = '0'
  assert.deepEqual(await ask(endpoint), Buffer.from('a'))
  headers = { ':status': 503 }
  await assert.rejects(ask(endpoint), /etcd answered 503, without a gRPC status/)
  headers = {}
  for (status of ['', '00', '0x0', ' 0', '-0']) await assert.rejects(ask(endpoint), status)
})

test('a call that is given up is cancelled at its member', async (t) => {
  const closed: Promise<unknown>[] = []
  const codes: (number | undefined)[] = []
  const endpoint = await servingGrpc(t, ({ stream, message }) => {
    closed.push(once(stream, 'close').then(() => codes.push(stream.rstCode)))
    return message.length > 0 ? 'hang' : Buffer.alloc(2 ** 24)
  })
  const ask = asking(t)
  // Another one is under way, so that the connection does not end.
  const other = ask(endpoint, { message: Buffer.from('x') })
  other.catch(() => {})
  await assert.rejects(ask(endpoint, { maxBytes: 1000 }), AnswerTooLong)
  await until('it is cancelled', () => codes.length === 1)
  assert.deepEqual(codes, [constants.NGHTTP2_CANCEL])
})

test('a message that is compressed, cut or followed by another is refused', async (t) => {
  const ask = asking(t)
  let body = Buffer.alloc(0)
  const endpoint = await servingGrpc(t, () => ({ body }))
  for (const hex of ['', '00', '00000000', '010000000161', '0000000001', '00000000016162']) {
    body = Buffer.from(hex, 'hex')
    await assert.rejects(ask(endpoint), /it is not one message/, hex)
  }
  body = Buffer.from('000000000161', 'hex')
  assert.deepEqual(await ask(endpoint), Buffer.from('a'))
})

test('a server of HTTP/1.1, of another protocol, or none at all fails a call', async (t) => {
  const ask = asking(t)
  const http = await serving(t, (_, res) => res.end('x'))
  const other = createServer((socket) => socket.end('no HTTP at all')).listen(0, '127.0.0.1')
  t.after(() => other.close())
  await once(other, 'listening')
  await assert.rejects(ask(http), /Protocol error/)
  await assert.rejects(ask(`http://127.0.0.1:${portOf(other)}`), /Protocol error/)
  await assert.rejects(ask('http://127.0.0.1:1'), /ECONNREFUSED/)
})
