import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { OPERATIONS, ROUTES } from '../../dist/api/operations.js'
import { type Condition, conditions } from '../../dist/errors.js'
import { failureCases, METHODS, send, type SendOptions, SPECIAL } from '../support/conditions.ts'
import { call, post } from '../support/http.ts'
import { ROOT } from '../support/release.ts'
import { flaws, isObject, resolve, type Schema } from '../support/schema.ts'
import { startService } from '../support/service.ts'
import { assertCommon, headerLines, verdict } from '../support/verdict.ts'
import type { WireAnswer } from '../support/wire.ts'

type Examples = Readonly<Record<string, { readonly value: unknown }>>

interface Described {
  readonly headers: Readonly<
    Record<string, { readonly required: boolean; readonly schema: Schema }>
  >
  readonly content?: Readonly<
    Record<string, { readonly schema: Schema; readonly examples: Examples }>
  >
}

interface Parameter {
  readonly name: string
  readonly in: string
  readonly schema: Schema
}

interface Operation {
  readonly operationId: string
  readonly parameters?: readonly Parameter[]
  readonly responses: Readonly<Record<string, Described>>
}

/** The member `parameters` has those that all operations of the path share. */
type PathItem = Readonly<Record<string, Operation>> & { readonly parameters?: never }

interface Document {
  readonly info: { readonly version: string; readonly contact: { readonly name: string } }
  readonly servers: readonly { readonly url: string }[]
  readonly security: unknown
  readonly paths: Readonly<Record<string, PathItem>>
  readonly components: {
    readonly schemas: Readonly<Record<string, Schema>>
    readonly securitySchemes: Readonly<Record<string, Schema>>
  }
}

async function fetchDocument(adminPort: number): Promise<Document> {
  // A missing member fails where it is used.
  return (await call(adminPort, { path: '/openapi.json', token: undefined })).json() as Document
}

function operationOf(document: Document, method: string, path = '/plants'): Operation {
  return document.paths[path]?.[method] ?? assert.fail(`${method} ${path} is not described`)
}

/** Every operation that is described, with its path and its method. */
function operationsOf({ paths }: Document) {
  return Object.entries(paths).flatMap(([path, { parameters: _, ...methods }]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, operation })),
  )
}

/** All objects of a document, each with its path. */
function* objectsIn(value: unknown, at = '#'): Generator<readonly [string, Schema]> {
  if (isObject(value)) yield [at, value]
  if (typeof value !== 'object' || value === null) return
  for (const [name, member] of Object.entries(value)) yield* objectsIn(member, `${at}/${name}`)
}

/** Compares an answer with its description: under its own status, or under "default". */
function assertDescribed(
  { operationId, responses }: Operation,
  document: Document,
  answer: WireAnswer,
  key = String(answer.status),
): void {
  assertCommon(answer)
  const where = `${operationId} ${answer.status}`
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

test('openapi: what is served was made from the table of operations', async (t) => {
  const { adminPort } = await startService(t)
  const served = await call(adminPort, { path: '/openapi.json', token: undefined })
  const args = ['--import', 'tsx', 'scripts/openapi.ts']
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: ROOT })
  assert.ok(served.text === stdout, 'openapi.json is not up to date: make openapi')
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
  assert.match(document.info.contact.name, /operators/, 'Spectral asks for a contact')
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
})

test('openapi: every operation of the table is described, on any path', async (t) => {
  const { adminPort } = await startService(t)
  const document = await fetchDocument(adminPort)
  const all = operationsOf(document)
  const ids = all.map(({ operation }) => operation.operationId)
  assert.equal(new Set(ids).size, ids.length)
  const expected = ROUTES.flatMap(({ path, allow }) =>
    allow.split(', ').map((method) => `${method.toLowerCase()} ${path}`),
  )
  assert.deepEqual(all.map(({ method, path }) => `${method} ${path}`).sort(), expected.sort())

  const ofSome = OPERATIONS.flatMap(({ errors }) => errors)
  const ofNone = [...conditions.keys()].filter((condition) => !ofSome.includes(condition))
  for (const { name, method, path, errors } of OPERATIONS) {
    const { operationId, responses } = operationOf(document, method.toLowerCase(), path)
    assert.equal(operationId, name)
    const shown = Object.values(responses).flatMap(exampleNames)
    assert.deepEqual(
      shown.filter((example) => conditions.has(example as Condition)).sort(),
      [...errors, ...ofNone].sort(),
      name,
    )
    if (method !== 'GET') continue
    const { responses: ofHead } = operationOf(document, 'head', path)
    assert.deepEqual(
      Object.entries(ofHead),
      Object.entries(responses).map(([status, { content: _, ...rest }]) => [status, rest]),
    )
  }
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

test('openapi: every failure is described where it occurs, and nowhere else', async (t) => {
  const { adminPort, cases } = await failureCases(t)
  const document = await fetchDocument(adminPort)
  for (const [condition, [error, message]] of conditions) {
    const { ask, path = '/plants' } = cases[condition]
    for (const method of METHODS.filter((each) => document.paths[path]?.[each])) {
      // An answer to HEAD has no body; its conditions are those of GET.
      const isHead = method === 'head'
      const operation = operationOf(document, method, path)
      const shown = isHead ? operationOf(document, 'get', path) : operation
      const [key, response] =
        Object.entries(shown.responses).find(([, each]) =>
          exampleNames(each).includes(condition),
        ) ?? []
      await t.test(`${method}: ${response ? '' : 'never '}${error}`, async () => {
        const answer = await ask(method)
        // To cause it, another method was sent, whose answer has a body.
        if (isHead && answer.body !== '') return
        assertDescribed(operation, document, answer, key)
        if (response && key !== 'default') assert.equal(answer.status, Number(key))
        if (isHead) return
        assert.equal(verdict(answer) === condition, response !== undefined)
        if (response)
          assert.deepEqual(response.content?.['application/json']?.examples[condition]?.value, {
            error,
            message,
          })
      })
    }
  }
})

test('openapi: every success is described, and every description of one occurs', async (t) => {
  const { adminPort, port } = await startService(t)
  const document = await fetchDocument(adminPort)
  const seen = new Set<string>()
  const succeed = async (method: string, options: SendOptions = {}, path = '/plants') => {
    const answer = await send(port, method, options)
    assertDescribed(operationOf(document, method, path), document, answer)
    seen.add(`${method} ${path} ${answer.status}`)
    return answer
  }
  assert.equal((await succeed('get')).body, '[]')
  for (const body of [
    { id: 1, name: 'a' },
    { id: 2, name: 'b', tag: 'c' },
    { id: 2, name: 'b', tag: 'c' },
  ])
    await succeed('post', { body })
  assert.equal((await succeed('get')).body, '[{"name":"a"},{"name":"b","tag":"c"}]')
  for (const method of ['get', 'head'])
    assert.equal(
      headerLines(await succeed(method, { target: '/plants?limit=1' }), 'link').length,
      1,
    )
  for (const { method, path } of operationsOf(document)) {
    const needsNone = method === 'options' ? { token: undefined } : {}
    await succeed(method, { target: path.replace(/\{\w+\}/g, '1'), ...needsNone }, path)
  }
  const described = operationsOf(document).flatMap(({ method, path, operation }) =>
    Object.keys(operation.responses)
      .filter((status) => Number(status) < 400)
      .map((status) => `${method} ${path} ${status}`),
  )
  assert.deepEqual([...seen].sort(), described.sort())
})
