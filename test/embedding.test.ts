import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import {
  ConfigError,
  createPlantService,
  type PlantService,
  type PlantServiceConfig,
} from '../dist/index.js'
import { embed, EMBEDDED, portOf } from './support/embedded.ts'
import { call, post } from './support/http.ts'
import { serving } from './support/serving.ts'
import { head, postBytes, Wire } from './support/wire.ts'

interface Mounted {
  readonly service: PlantService
  readonly port: number
  /** Answers GET /slow, which waits for this. */
  answerSlow(): void
}

/** A service in the test's own server, which serves /slow itself. */
async function mount(t: TestContext, options: Partial<PlantServiceConfig> = {}): Promise<Mounted> {
  const service = await embed(t, options)
  await service.open()
  let answerSlow = (): void => {}
  const slow = new Promise<void>((resolve) => (answerSlow = resolve))
  const url = await serving(t, (req, res) => {
    if (req.url === '/slow') void slow.then(() => res.end('slow'))
    else service.handler(req, res)
  })
  return { service, port: portOf(url), answerSlow }
}

const SLOW = head('GET', '/slow', { token: undefined })

test('embedding: an undefined option leaves the default', async (t) => {
  const { port } = await mount(t, {
    maxBodyBytes: undefined,
    ownerClaim: undefined,
    logLevel: undefined,
    rateLimit: undefined,
  })
  assert.equal((await post(port, { id: 1, name: 'Fern' })).status, 200)
  assert.equal((await post(port, { id: 2, name: 'x'.repeat(1024 * 1024) })).status, 413)
})

test('embedding: every wrong option is named, and nothing starts', () => {
  // JavaScript can pass these, although the types forbid them.
  const wrong = {
    issuer: '',
    keys: EMBEDDED.keys,
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

test('embedding: close leaves a request to the application on a shared connection', async (t) => {
  const { service, port, answerSlow } = await mount(t)
  const wire = await Wire.to(port)
  assert.equal((await wire.write(head('GET', '/plants')).answers(1))[0]?.body, '[]')
  wire.write(SLOW)
  await service.close()
  answerSlow()
  assert.equal((await wire.answers(2))[1]?.body, 'slow')
  wire.destroy()
})

test("embedding: an answer that closes waits for the application's answer before it", async (t) => {
  const { port, answerSlow } = await mount(t, { maxBodyBytes: 10 })
  const wire = await Wire.to(port)
  wire.write(SLOW + postBytes(' '.repeat(100)).slice(0, -100))
  await call(port)
  answerSlow()
  const answers = await wire.answers(2)
  assert.deepEqual(
    answers.map(({ status }) => status),
    [200, 413],
  )
  assert.match(answers[1]?.body ?? '', /41301/)
  wire.destroy()
})
