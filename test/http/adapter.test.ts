import assert from 'node:assert/strict'
import { EventEmitter, once } from 'node:events'
import { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { Writable } from 'node:stream'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { PlantList } from '../../dist/plants/store.js'
import { type Bare, listFrom, listOf, slowStore, startBare, startMounted } from '../support/bare.ts'
import { gate, until } from '../support/time.ts'
import { verdict } from '../support/verdict.ts'
import { CHUNKED, chunk, firstAnswer, head, postBytes, posting, Wire } from '../support/wire.ts'

/*
 * What a request holds in another application's server is released, however it ends, and nothing is
 * served after a request whose end is unclear.
 */

const GET = head('GET', '/plants')
const FERN = postBytes({ id: 1, name: 'Fern' })
const LARGE = { name: 'x'.repeat(1_000_000) }
const FORTY = Array(40).fill([LARGE])

async function assertNothingHeld({ adapter, responses, bodies }: Bare): Promise<void> {
  await until('none is answered', () => adapter.active === 0)
  await until('no response is held', () => responses.held === 0)
  await until('no body is held', () => bodies.held === 0)
}

describe('adapter', { concurrency: true }, () => {
  test('a create after another request, whose connection ends as it is stored', async (t) => {
    const { store, release } = slowStore()
    let socket: Socket | undefined
    // The application never responds to the first request.
    const bare = await startMounted(t, { store }, (handler) => (req, res) => {
      if (req.url === '/plants') handler(req, res)
      else socket = req.socket
    })
    const wire = await Wire.to(bare.port)
    wire.write(head('GET', '/slow') + FERN)
    await until('the create is under way', () => bare.adapter.active === 1 && bare.bodies.held > 0)
    // In one tick, so that the create is decided between the end of the socket and its 'close'.
    socket?.destroy()
    release()
    await assertNothingHeld(bare)
    await until('it is logged', () => bare.answered.length > 0)
    assert.deepEqual(bare.answered, ['POST 200 aborted'])
  })

  test('a refused body that never ends is answered', async (t) => {
    const bare = await startMounted(t)
    const wire = await Wire.to(bare.port)
    wire.write(head('DELETE', '/plants', { lines: [CHUNKED] }) + chunk('{'))
    assert.deepEqual((await wire.answers(1)).map(verdict), ['methodNotAllowed'])
    await until('it is logged', () => bare.answered.length > 0)
    assert.deepEqual(bare.answered, ['DELETE 405'])
    assert.deepEqual(bare.refused, [40501])
    await assertNothingHeld(bare)
  })

  test('pipelined lists hold nothing once the client has left', async (t) => {
    const bare = await startMounted(t, { store: { list: () => listOf(FORTY.slice(0, 20)) } })
    for (let round = 0; round < 5; round++) {
      const wire = await Wire.to(bare.port)
      wire.socket.pause()
      wire.write(GET.repeat(3))
      await until('one is under way', () => bare.responses.held > 0)
      wire.destroy()
      await assertNothingHeld(bare)
    }
  })

  test('a list that is ready after its client has left is read no further', async (t) => {
    let [lists, chunks] = [0, 0]
    const { opened, open } = gate()
    const list = (): PlantList => {
      lists++
      return listFrom(async () => (chunks++, await opened, [LARGE]))
    }
    const bare = await startMounted(t, { store: { list } })
    const early = await Wire.to(bare.port)
    early.write(GET)
    await until('its list is open', () => lists === 1)
    early.destroy()
    await until('it has left', () => bare.adapter.active === 0)
    open()
    // Its list waits for the rest of a body that is not wanted.
    const late = await Wire.to(bare.port)
    late.write(`${head('GET', '/plants', { lines: [CHUNKED] })}1\r\n`)
    await until('the list is open', () => lists === 2)
    late.destroy()
    await assertNothingHeld(bare)
    await until('the first chunks are read', () => chunks >= lists)
    const before = chunks
    await sleep(50)
    assert.equal(chunks, before)
  })

  const begun = (lines: string[], version?: string): string =>
    `${head('POST', '/plants', { lines, ...(version && { version }) })}0\r\n\r\n`
  const unclear = {
    'chunked HTTP/1.0': begun([CHUNKED], '1.0'),
    'two codings': begun(['Transfer-Encoding: gzip', CHUNKED]),
    '120 headers': head('GET', '/plants', { lines: Array(120).fill('X: x') }),
  }
  for (const [what, first] of Object.entries(unclear))
    test(`nothing is carried out after a request whose end is unclear: ${what}`, async (t) => {
      const { port, plants } = await startMounted(t)
      const wire = await Wire.to(port)
      await wire.write(first + FERN).end()
      assert.ok(!wire.text.includes(' 200 '), wire.text)
      await sleep(50)
      assert.equal(plants.size, 0)
    })

  test('a request that is handed over when its response is finished is ignored', async (t) => {
    let ignored = 0
    const bare = await startMounted(t, {}, (handler) => (req, res) => {
      if (req.url !== '/own') return handler(req, res)
      res.end('own')
      setTimeout(() => (handler(req, res), ignored++), 20)
    })
    const wire = await Wire.to(bare.port)
    for (let at = 1; at <= 3; at++) await wire.write(head('GET', '/own')).answers(at)
    await until('all are ignored', () => ignored === 3 && bare.adapter.active === 0)
    assert.equal(await bare.adapter.drain(1000), 0)
    assert.deepEqual((await wire.write(GET).answers(4)).slice(3).map(verdict), [200])
  })

  test('a body that turns out too long after the application responded is dropped', async (t) => {
    const bare = await startMounted(t, {}, (handler) => (req, res) => {
      handler(req, res)
      if (req.method === 'POST') res.writeHead(504, { 'content-length': 0 }).end()
    })
    const wire = await Wire.to(bare.port)
    await wire.write(posting([CHUNKED])).answers(1)
    const answers = await wire.write(`${chunk(' '.repeat(2 ** 21))}0\r\n\r\n${GET}`).answers(2)
    const statuses = answers.map(({ status }) => status)
    assert.deepEqual(statuses, [504, 200])
    await assertNothingHeld(bare)
  })

  for (const [what, wrap] of [
    ['returns nothing', (write: () => void) => void write()],
    ['returns a promise', async (write: () => void) => write()],
  ] as const)
    test(`a list is whole, and waits for its reader, if write() ${what}`, async (t) => {
      let made = 0
      const list = (): PlantList => {
        const chunks = listOf(FORTY)
        return { next: () => (made++, chunks.next()) }
      }
      const { port } = await startMounted(t, { store: { list } }, (handler) => (req, res) => {
        const { write } = res
        const wrapped = (piece: Buffer): unknown => wrap(() => write.call(res, piece, 'utf8'))
        handler(req, Object.assign(res, { write: wrapped }))
      })
      const wire = await Wire.to(port)
      wire.socket.pause()
      wire.write(GET)
      await until('it is under way', () => made > 0)
      for (let before = 0; before < made; await sleep(200)) before = made
      assert.ok(made < FORTY.length / 2, `${made} chunks`)
      wire.socket.resume()
      assert.deepEqual((await wire.answers(1)).map(verdict), [200])
      assert.ok(made >= FORTY.length)
    })

  test('listeners for an application that has a stream of its own do not pile up', async (t) => {
    // As the middleware `compression` does: what listens for 'drain' waits for its own stream.
    const own = new EventEmitter()
    let most = 0
    const store = { list: () => listOf(FORTY.slice(0, 30)) }
    const { port } = await startMounted(t, { store }, (handler) => (req, res) => {
      const { on } = res
      on.call(res, 'drain', () => own.emit('drain'))
      const add = (name: string, listener: () => void): EventEmitter => {
        if (name !== 'drain') return on.call(res, name, listener)
        own.on(name, listener)
        most = Math.max(most, own.listenerCount(name), own.listenerCount('close'))
        return own
      }
      handler(req, Object.assign(res, { on: add, once: add }))
    })
    assert.equal((await firstAnswer(port, GET)).status, 200)
    assert.equal(most, 1)
  })
})

test('adapter: a body whose request the application answers is held no more', async (t) => {
  const { port, bodies } = await startMounted(t, {}, (handler) => (req, res) => {
    handler(req, res)
    // After the service's own listener: the plant is not read yet.
    req.once('end', () => res.writeHead(504, { 'Content-Length': 0 }).end())
  })
  for (let id = 1; id <= 3; id++)
    assert.equal((await firstAnswer(port, postBytes({ ...LARGE, id }))).status, 504)
  await until('nothing is held', () => bodies.held === 0)
})

test('adapter: a request that a program makes without a connection is answered', async (t) => {
  const { adapter, answered } = await startBare(t)
  // As light-my-request does for Fastify's `inject`.
  const req = new IncomingMessage(new EventEmitter() as Socket)
  Object.assign(req, { method: 'GET', url: '/plants', httpVersion: '1.1', complete: true })
  req.rawHeaders = ['Host', 'a', 'Authorization', 'Bearer a.b.c']
  req.push(null)
  const res = new ServerResponse(req)
  let text = ''
  const written = new Writable({
    write(piece: Buffer, _encoding, done) {
      text += piece.toString('latin1')
      setImmediate(done)
    },
  })
  res.assignSocket(written as Socket)
  const { end } = res
  // It does not wait until all is written.
  const endAtOnce = (...given: Parameters<typeof end>): ServerResponse => {
    end.apply(res, given)
    res.emit('finish')
    process.nextTick(() => res.emit('close'))
    return res
  }
  adapter.handler(req, Object.assign(res, { end: endAtOnce }))
  await once(res, 'close')
  assert.deepEqual(answered, ['GET 200'])
  assert.match(text, /^HTTP\/1\.1 200 OK\r\n[^]*\r\n\r\n\[\]$/)
})

for (const [what, bytes] of [
  ['with a length', posting(['Content-Length: 100000'])],
  ['in chunks', posting([CHUNKED])],
] as const)
  test(`adapter: a body ${what} that is given up after a timeout is held no more`, async (t) => {
    // Like a timeout middleware.
    const bare = await startMounted(t, {}, (handler) => (req, res) => {
      handler(req, res)
      setTimeout(() => res.writeHead(504, { 'Content-Length': 0 }).end(), 20)
    })
    const wire = await Wire.to(bare.port)
    wire.write(bytes + (bytes.includes(CHUNKED) ? chunk('{"id":1,') : '{"id":1,'))
    await until('the body is held', () => bare.bodies.held > 0)
    assert.equal((await wire.answers(1))[0]?.status, 504)
    wire.destroy()
    await assertNothingHeld(bare)
  })

test('adapter: an application that decodes a body meanwhile gets 500, and goes on', async (t) => {
  const bare = await startMounted(t, {}, (handler) => (req, res) => {
    handler(req, res)
    if (req.method === 'POST') req.setEncoding('utf8')
  })
  assert.equal(verdict(await firstAnswer(bare.port, FERN)), 'internal')
  assert.equal(verdict(await firstAnswer(bare.port, GET)), 200)
  await assertNothingHeld(bare)
})
