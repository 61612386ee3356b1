import assert from 'node:assert/strict'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { type TestContext, test } from 'node:test'
import { type Condition, conditions } from '../../dist/errors.js'
import { SqljsStore } from '../../dist/store/sqljs/store.js'
import { startBare } from '../support/bare.ts'
import { call, post } from '../support/http.ts'
import { answerUnderLoad } from '../support/overload.ts'
import { flaws, isObject, resolve, type Schema } from '../support/schema.ts'
import { startService } from '../support/service.ts'
import { stopClock } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { assertCommon, headerLines, verdict } from '../support/verdict.ts'
import {
  answersToHalf,
  firstAnswer,
  head,
  postBytes,
  Wire,
  type WireAnswer,
} from '../support/wire.ts'

type Examples = Readonly<Record<string, { readonly value: unknown }>>

interface Described {
  readonly headers: Readonly<
    Record<string, { readonly required: boolean; readonly schema: Schema }>
  >
  readonly content?: Readonly<
    Record<string, { readonly schema: Schema; readonly examples: Examples }>
  >
}

interface Operation {
  readonly operationId: string
  readonly parameters?: readonly { readonly name: string; readonly schema: Schema }[]
  readonly responses: Readonly<Record<string, Described>>
}

interface Document {
  readonly info: { readonly version: string }
  readonly servers: readonly { readonly url: string }[]
  readonly security: unknown
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>
  readonly components: {
    readonly schemas: Readonly<Record<string, Schema>>
    readonly securitySchemes: Readonly<Record<string, Schema>>
  }
}

const METHODS = ['get', 'head', 'post', 'options'] as const
type Method = (typeof METHODS)[number]

/** Headers that only some answers have: each must be described. */
const SPECIAL = ['www-authenticate', 'allow', 'retry-after', 'accept-encoding', 'link'] as const

async function fetchDocument(adminPort: number): Promise<Document> {
  // A missing member fails where it is used.
  return (await call(adminPort, { path: '/openapi.json', token: undefined })).json() as Document
}

function operationOf(document: Document, method: string): Operation {
  return document.paths['/plants']?.[method] ?? assert.fail(`${method} is not described`)
}

/** All objects of a document, each with its path. */
function* objectsIn(value: unknown, at = '#'): Generator<readonly [string, Schema]> {
  if (isObject(value)) yield [at, value]
  if (typeof value !== 'object' || value === null) return
  for (const [name, member] of Object.entries(value)) yield* objectsIn(member, `${at}/${name}`)
}

/** Compares an answer with its description: under its own status, or under "default". */
function assertDescribed(
  document: Document,
  method: string,
  answer: WireAnswer,
  key = String(answer.status),
): void {
  assertCommon(answer)
  const where = `${method} ${answer.status}`
  const { responses } = operationOf(document, method)
  if (key === 'default') assert.equal(responses[answer.status], undefined, where)
  const { headers, content } = responses[key] ?? assert.fail(`${where} is not described`)
  for (const [name, { required, schema }] of Object.entries(headers)) {
    const lines = headerLines(answer, name.toLowerCase())
    assert.ok(
      lines.length === 1 || (lines.length === 0 && !required),
      `${where}: ${lines.length} lines of ${name}`,
    )
    for (const line of lines)
      assert.deepEqual(
        flaws(document, schema, schema['type'] === 'integer' ? Number(line) : line),
        [],
        `${where}: ${name}`,
      )
  }
  const described = Object.keys(headers).map((name) => name.toLowerCase())
  for (const name of SPECIAL)
    if (headerLines(answer, name).length > 0)
      assert.ok(described.includes(name), `${where}: ${name} is not described`)
  if (content === undefined) {
    assert.equal(answer.body, '', where)
    return
  }
  const { schema, examples } =
    content[headerLines(answer, 'content-type').join()] ??
    assert.fail(`${where}: another media type`)
  const condition = verdict(answer)
  const names = Object.keys(examples)
  if (typeof condition === 'string') assert.ok(names.includes(condition), `${where}: ${condition}`)
  assert.deepEqual(flaws(document, schema, JSON.parse(answer.body), true), [], where)
}

/** Examples of failures have the names of their conditions. */
function exampleNames({ content }: Described): readonly string[] {
  return Object.keys(content?.['application/json']?.examples ?? {})
}

function send(
  port: number,
  method: string,
  {
    target = '/plants',
    body = { id: 1, name: 'a' },
    ...options
  }: Parameters<typeof head>[2] & { readonly target?: string; readonly body?: unknown } = {},
): Promise<WireAnswer> {
  return firstAnswer(port, bytesOf(method, target, body, options), headsOf(method))
}

/** The indexes of answers without a body, if there is one answer. */
function headsOf(method: string): readonly number[] {
  return method === 'head' ? [0] : []
}

function bytesOf(
  method: string,
  target: string,
  body: unknown,
  options: Parameters<typeof head>[2],
): string {
  return method === 'post' ? postBytes(body, options) : head(method.toUpperCase(), target, options)
}

test('openapi: the document is served without a token, on the admin listener', async (t) => {
  const { adminPort, port } = await startService(t)
  const get = (method: string) =>
    call(adminPort, { path: '/openapi.json', method, token: undefined })
  const [first, second, only, refused] = [
    await get('GET'),
    await get('GET'),
    await get('HEAD'),
    await get('POST'),
  ]
  assertCommon(first)
  assert.deepEqual([first.status, headerLines(first, 'content-type')], [200, ['application/json']])
  assert.equal(second.text, first.text)
  const file = readFileSync(new URL('../../openapi.json', import.meta.url), 'utf8')
  const how = 'node dist/main.js openapi > openapi.json'
  assert.ok(first.text === file, `openapi.json is not what is served: ${how}`)
  assert.deepEqual(
    [only.status, only.text, headerLines(only, 'content-length')],
    [200, '', [String(Buffer.byteLength(first.text))]],
  )
  assert.deepEqual(
    [verdict(refused), headerLines(refused, 'allow')],
    ['methodNotAllowed', ['GET, HEAD']],
  )
  assert.equal(verdict(await call(port, { path: '/openapi.json' })), 'pathUnknown')
})

test('openapi: the server is a plain URL, which generators take as their base', async (t) => {
  const { adminPort } = await startService(t)
  const { servers } = await fetchDocument(adminPort)
  assert.deepEqual(
    servers.map(({ url }) => url),
    ['http://127.0.0.1:8080'],
  )
})

test('openapi: the document is consistent', async (t) => {
  const { adminPort } = await startService(t)
  const document = await fetchDocument(adminPort)
  assert.equal(document.info.version, '1.0.0', 'of the interface')
  assert.deepEqual(Object.keys(document.components.schemas), ['Plant', 'NewPlant', 'Error'])
  const { type, scheme, bearerFormat } =
    document.components.securitySchemes['bearer'] ?? assert.fail()
  assert.deepEqual([type, scheme, bearerFormat], ['http', 'bearer', 'JWT'])
  assert.deepEqual(document.security, [{ bearer: [] }], 'for the whole service')

  const [references, examples] = [new Set<string>(), [] as string[]]
  for (const [at, object] of objectsIn(document)) {
    const { $ref, schema, examples: shown } = object
    if (typeof $ref === 'string') {
      assert.ok(isObject(resolve(document, $ref)), at)
      references.add($ref)
    }
    if (!isObject(shown)) continue
    for (const [name, example] of Object.entries(shown)) {
      assert.ok(isObject(example) && isObject(schema), at)
      assert.deepEqual(flaws(document, schema, example['value'], true), [], `${at}: ${name}`)
      examples.push(name)
    }
  }
  assert.deepEqual(
    [...references].sort(),
    ['Error', 'NewPlant', 'Plant'].map((name) => `#/components/schemas/${name}`),
  )
  assert.deepEqual(
    [...conditions.keys()].filter((condition) => !examples.includes(condition)),
    [],
    'every failure of the catalogue is shown',
  )
  const ids = Object.values(document.paths['/plants'] ?? {}).map(({ operationId }) => operationId)
  assert.equal(new Set(ids).size, ids.length)
})

test('openapi: the service accepts what the description allows, and nothing else', async (t) => {
  const { adminPort, port } = await startService(t)
  const document = await fetchDocument(adminPort)
  const { NewPlant = assert.fail() } = document.components.schemas
  const plants: readonly unknown[] = [
    { id: 1, name: 'a' },
    { id: -5, name: '', tag: '' },
    { id: 2 ** 53, name: 'a', tag: 'b', other: [null] },
    { id: -(2 ** 62), name: '\u0000\ud83c\udf31' },
    { id: 3 },
    { name: 'a' },
    { id: '3', name: 'a' },
    { id: 3.5, name: 'a' },
    { id: 2 ** 64, name: 'a' },
    { id: null, name: 'a' },
    { id: 3, name: 4 },
    { id: 3, name: 'a', tag: null },
    { id: 3, name: 'a', tag: 4 },
    [],
    'a',
    null,
  ]
  for (const plant of plants) {
    const { status } = await post(port, plant === 'a' ? '"a"' : plant)
    assert.equal(
      status,
      flaws(document, NewPlant, plant).length === 0 ? 200 : 400,
      JSON.stringify(plant),
    )
  }
  const [limit = assert.fail(), after = assert.fail()] =
    operationOf(document, 'get').parameters ?? []
  assert.deepEqual([limit.name, after.name], ['limit', 'after'])
  for (const value of [0, 1, 2 ** 31 - 1, -1, 2 ** 31, 0.5]) {
    assert.equal(
      (await call(port, { path: `/plants?limit=${value}` })).status,
      flaws(document, limit.schema, value).length === 0 ? 200 : 400,
      String(value),
    )
  }
  const [, cursor = ''] =
    /&after=([^>]*)>/.exec(
      headerLines(await call(port, { path: '/plants?limit=2' }), 'link').join(),
    ) ?? []
  for (const value of [cursor, '']) {
    assert.equal(
      (await call(port, { path: `/plants?after=${value}` })).status,
      flaws(document, after.schema, value).length === 0 ? 200 : 400,
      value,
    )
  }
})

test('openapi: all answers are described, and all descriptions occur', async (t) => {
  const { adminPort, port } = await startService(t, {
    readScope: 'plants:read',
    writeScope: 'plants:write',
    maxBodyBytes: 1000,
  })
  const document = await fetchDocument(adminPort)
  const good = token('alice', { scope: 'plants:read plants:write' })
  const raise = await failureCases(t, port, good)

  for (const method of METHODS) {
    // An answer to HEAD has no body; its conditions are those of GET.
    const shown = Object.entries(
      operationOf(document, method === 'head' ? 'get' : method).responses,
    )
    for (const [condition, [error]] of conditions) {
      const answerTo = raise[condition]
      if (!answerTo) continue
      const [status, response] =
        shown.find(
          ([key, described]) => key !== 'default' && exampleNames(described).includes(condition),
        ) ?? []
      await t.test(`${method}: ${response ? '' : 'never '}${error}`, async () => {
        const answer = await answerTo(method)
        assertDescribed(document, method, answer)
        if (response) assert.equal(answer.status, Number(status))
        if (method !== 'head') assert.equal(verdict(answer) === condition, response !== undefined)
        if (response && method !== 'head')
          assert.deepEqual(
            JSON.parse(answer.body),
            response.content?.['application/json']?.examples[condition]?.value,
          )
      })
    }
    assert.deepEqual(
      Object.keys(operationOf(document, method).responses),
      shown.map(([status]) => status),
    )
  }
  const elsewhere = exampleNames(operationOf(document, 'get').responses['default'] ?? assert.fail())
  assert.deepEqual(
    [...Object.keys(raise), ...elsewhere].sort(),
    [...conditions.keys()].sort(),
    'every entry of the catalogue occurs',
  )

  await t.test('success', async () => {
    const seen = new Set<string>()
    const other = token('bob', { scope: 'plants:read plants:write' })
    const succeed = async (method: string, options: Parameters<typeof send>[2] = {}) => {
      const answer = await send(port, method, { token: other, ...options })
      assertDescribed(document, method, answer)
      seen.add(`${method} ${answer.status}`)
      return answer
    }
    assert.equal((await succeed('get')).body, '[]')
    for (const body of [
      { id: 1, name: 'a', tag: 'b' },
      { id: 2, name: 'c' },
      { id: 2, name: 'c' },
    ])
      await succeed('post', { body })
    assert.equal((await succeed('get')).body, '[{"name":"a","tag":"b"},{"name":"c"}]')
    for (const method of ['get', 'head'])
      assert.equal(
        headerLines(await succeed(method, { target: '/plants?limit=1' }), 'link').length,
        1,
      )
    await succeed('options', { token: undefined })
    const described = Object.entries(document.paths['/plants'] ?? {}).flatMap(
      ([method, { responses }]) =>
        Object.keys(responses)
          .filter((status) => Number(status) < 400)
          .map((status) => `${method} ${status}`),
    )
    assert.deepEqual([...seen].sort(), described.sort())
  })

  await t.test('requests of no operation are described as the default of each', async () => {
    const others: readonly (readonly [Condition, WireAnswer])[] = [
      ['pathUnknown', await send(port, 'get', { target: '/trees' })],
      ...(await Promise.all(
        ['put', 'patch', 'delete'].map(
          async (method) => ['methodNotAllowed', await send(port, method)] as const,
        ),
      )),
      ...(await Promise.all(
        ['trace', 'search'].map(
          async (method) => ['methodUnknown', await send(port, method)] as const,
        ),
      )),
    ]
    for (const [condition, answer] of others) {
      assert.equal(verdict(answer), condition)
      for (const method of METHODS.filter((name) => name !== 'head'))
        assertDescribed(document, method, answer, 'default')
    }
    assert.deepEqual(
      [...exampleNames(operationOf(document, 'post').responses['default'] ?? assert.fail())].sort(),
      [...new Set(others.map(([condition]) => condition))].sort(),
    )
    assertDescribed(document, 'head', await send(port, 'head', { target: '/trees' }), 'default')
  })
})

/** How to cause each failure with a method; the document says with which ones it occurs. */
async function failureCases(
  t: TestContext,
  port: number,
  good: string,
): Promise<Readonly<Partial<Record<Condition, (method: Method) => Promise<WireAnswer>>>>> {
  const meet = (options: Parameters<typeof send>[2]) => (method: Method) =>
    send(port, method, { token: good, ...options })
  const typed =
    (body: string, ...lines: readonly string[]) =>
    (method: Method) =>
      firstAnswer(
        port,
        head(method.toUpperCase(), '/plants', {
          token: good,
          lines: [...lines, `Content-Length: ${body.length}`],
        }) + body,
        headsOf(method),
      )
  const bare = await startBare(t, { timeouts: { headersMs: 100, requestMs: 200 } })
  // What its clients have not read takes more than there is.
  const unread = await startBare(t, { answersMaxBytes: -1 })
  const limited = await startService(t, { rateLimit: 1 })
  // Nothing listens on port 1.
  const keyless = await startService(t, { keys: { kind: 'url', url: 'http://127.0.0.1:1/keys' } })
  const closed = await startClosed(t)
  return {
    malformedRequest: meet({ lines: ['no colon'] }),
    hostInvalid: meet({ host: undefined }),
    authorizationMalformed: meet({ token: 'a,b' }),
    contentTypeRepeated: typed(
      '{}',
      'Content-Type: application/json',
      'Content-Type: application/json',
    ),
    bodyNotUtf8: typed('\xff', 'Content-Type: application/json'),
    bodyNotJson: meet({ body: [] }),
    memberRepeated: meet({ body: '{"id":1,"name":"a","name":"a"}' }),
    nameInvalid: meet({ body: { id: 1 } }),
    idInvalid: meet({ body: { name: 'a' } }),
    tagInvalid: meet({ body: { id: 1, name: 'a', tag: null } }),
    limitInvalid: meet({ target: '/plants?limit=-1' }),
    afterInvalid: meet({ target: '/plants?after=' }),
    tokenMissing: meet({ token: undefined }),
    tokenInvalid: meet({ token: 'abc' }),
    tokenExpired: meet({ token: token('alice', { exp: 1_000_000 }) }),
    tokenUnacceptable: meet({ token: token('alice', { aud: 'others' }) }),
    scopeMissing: meet({ token: token('alice', { scope: 'others' }) }),
    async requestTimeout(method) {
      const half = bytesOf(method, '/plants', { id: 1, name: 'a' }, {}).slice(0, -3)
      return (
        (
          await answersToHalf(
            bare.port,
            (wire) => void wire.write(half),
            (wire) => wire.answers(1, headsOf(method)),
          )
        )[0] ?? assert.fail()
      )
    },
    async idTaken(method) {
      const other = token('other', { scope: 'plants:write' })
      await send(port, method, { token: other, body: { id: 1, name: 'a' } })
      return send(port, method, { token: other, body: { id: 1, name: 'b' } })
    },
    bodyTooLarge: meet({ body: { id: 1, name: 'x'.repeat(1000) } }),
    mediaTypeUnsupported: typed('{}', 'Content-Type: text/plain'),
    contentEncodingUnsupported: typed(
      '{}',
      'Content-Type: application/json',
      'Content-Encoding: gzip',
    ),
    expectationFailed: meet({ lines: ['Expect: a-miracle'] }),
    async rateLimited(method) {
      const bytes = bytesOf(method, '/plants', { id: 1, name: 'a' }, { token: token(method) })
      const wire = await Wire.to(limited.port)
      // Both in one second.
      const clock = stopClock(t)
      const answers = await wire.write(bytes + bytes).answers(2, method === 'head' ? [0, 1] : [])
      clock.restore()
      wire.destroy()
      return answers[1] ?? assert.fail()
    },
    headersTooLarge: meet({ lines: [`X: ${'x'.repeat(20_000)}`] }),
    async internal(method) {
      const mocked = t.mock.method(
        SqljsStore.prototype,
        method === 'post' ? 'create' : 'list',
        () => {
          throw new Error('a bug')
        },
      )
      // An owner whose list is not cached.
      const answer = await send(port, method, {
        token: token('new owner', { scope: 'plants:read plants:write' }),
      })
      mocked.mock.restore()
      return answer
    },
    keysUnavailable: (method) =>
      send(keyless.port, method, { token: token('alice', {}, { alg: 'RS256', kid: 'a' }) }),
    storageUnavailable: (method) => send(closed, method),
    async overloaded(method) {
      const underLoad = await answerUnderLoad(t, (loaded) => send(loaded, method))
      return underLoad.status < 400 ? send(unread.port, method) : underLoad
    },
    async storageFull(method) {
      const full = await startService(t, { maxDataBytes: 65_536 })
      for (let id = 0; ; id++) {
        const answer = await send(full.port, method, { body: { id, name: 'x'.repeat(10_000) } })
        if (answer.status >= 400 || id === 7) return answer
      }
    },
  }
}

/** The port of a program that closed the embedded service and goes on serving. */
async function startClosed(t: TestContext): Promise<number> {
  const { service, close } = await startService(t)
  await close()
  const server = createServer(service.handler).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.after(() => server.close())
  // It listens on TCP.
  return (server.address() as AddressInfo).port
}
