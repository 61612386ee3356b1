import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { type TestContext, test } from 'node:test'
import {
  ConfigError,
  createPlantService,
  type PlantService,
  type PlantServiceConfig,
} from '../dist/index.js'
import { call, post } from './support/http.ts'
import { temporaryDirectory } from './support/service.ts'
import { AUDIENCE, ISSUER, SECRET, token } from './support/tokens.ts'

const CONFIG: PlantServiceConfig = {
  issuer: ISSUER,
  audience: AUDIENCE,
  keys: { kind: 'secret', secret: Buffer.from(SECRET) },
  logLevel: 'silent',
}

interface Mounted {
  readonly service: PlantService
  readonly port: number
  /** Ends the answer to GET /slow, which else waits. */
  answerSlow(): void
}

/** A service in a server of the test's own, which serves /slow itself. */
async function mount(
  t: TestContext,
  config: Readonly<Record<string, unknown>> = {},
): Promise<Mounted> {
  const service = createPlantService({
    ...CONFIG,
    dataDirectory: join(await temporaryDirectory(), 'data'),
    ...config,
  })
  let answerSlow = (): void => {}
  const slow = new Promise<void>((resolve) => (answerSlow = resolve))
  const server: Server = createServer((req, res) => {
    if (req.url === '/slow') void slow.then(() => res.end('slow'))
    else service.handler(req, res)
  })
  await service.open()
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(async () => {
    await service.close()
    server.closeAllConnections()
    server.close()
  })
  const address = server.address()
  assert.ok(address !== null && typeof address === 'object')
  return { service, port: address.port, answerSlow }
}

function open(
  t: TestContext,
  port: number,
): { readonly socket: Socket; until(pattern: RegExp): Promise<string> } {
  const socket = connect(port, '127.0.0.1')
  t.after(() => socket.destroy())
  let text = ''
  socket.setEncoding('latin1').on('data', (chunk: string) => (text += chunk))
  const closed = once(socket, 'close')
  return {
    socket,
    async until(pattern) {
      while (!pattern.test(text) && !socket.closed)
        await Promise.race([once(socket, 'data'), closed])
      assert.match(text, pattern)
      return text
    },
  }
}

const AUTHORIZED = `Host: x\r\nAuthorization: Bearer ${token('alice')}\r\n`

test('embedding: a member that is undefined does not undo a default', async (t) => {
  const { port } = await mount(t, {
    maxBodyBytes: undefined,
    ownerClaim: undefined,
    logLevel: undefined,
    rateLimit: undefined,
  })
  assert.equal((await post(port, { id: 1, name: 'Fern' })).status, 200)
  assert.equal((await post(port, { id: 2, name: 'x'.repeat(1024 * 1024) })).status, 413)
})

test('embedding: every wrong member is named, and nothing is begun', () => {
  // What JavaScript may pass, whatever the types say.
  const wrong = {
    issuer: '',
    keys: CONFIG.keys,
    readscope: 'plants:read',
    maxBodyBytes: '1mb',
    maxConnections: NaN,
    rateLimit: 0,
    drainDelaySeconds: 0.5,
    maxDataBytes: 2 ** 31,
  } as unknown as PlantServiceConfig
  assert.throws(
    () => createPlantService(wrong),
    (error) => {
      assert.ok(error instanceof ConfigError)
      assert.deepEqual(error.problems.map((problem) => problem.split(' ', 1)[0]).sort(), [
        'audience',
        'drainDelaySeconds',
        'issuer',
        'maxBodyBytes',
        'maxConnections',
        'maxDataBytes',
        'rateLimit',
        'readscope',
      ])
      return true
    },
  )
})

test('embedding: a close leaves a request alone that somebody else answers on a connection which plants went through', async (t) => {
  const { service, port, answerSlow } = await mount(t)
  const { socket, until } = open(t, port)
  socket.write(`GET /plants HTTP/1.1\r\n${AUTHORIZED}\r\n`)
  await until(/\r\n\r\n\[\]/)
  socket.write('GET /slow HTTP/1.1\r\nHost: x\r\n\r\n')
  await service.close()
  answerSlow()
  await until(/\r\nslow$/)
})

test('embedding: an answer that closes the connection does not overtake what somebody else still answers', async (t) => {
  const { port, answerSlow } = await mount(t, { maxBodyBytes: 10 })
  const { socket, until } = open(t, port)
  socket.write(
    `GET /slow HTTP/1.1\r\nHost: x\r\n\r\nPOST /plants HTTP/1.1\r\n${AUTHORIZED}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n`,
  )
  await call(port)
  answerSlow()
  const text = await until(/41301/)
  assert.deepEqual(text.match(/HTTP\/1\.1 \d+/g), ['HTTP/1.1 200', 'HTTP/1.1 413'])
})
