import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { cp, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import { reasonOf } from '../../dist/errors.js'
import { codeOf } from '../support/documents.ts'
import { post } from '../support/http.ts'
import { installed } from '../support/installed.ts'
import { ROOT } from '../support/release.ts'
import { THOROUGH } from '../support/scale.ts'
import { startService, temporaryDirectory } from '../support/service.ts'
import { serving } from '../support/serving.ts'
import { token } from '../support/tokens.ts'

/** What doubles hold, and the first integer that they do not. */
const [ROUNDED, EXACT] = [2n ** 53n, 2n ** 53n + 1n]
const CLIENTS = 'src/clients.md'
const HEADING = 'Large ids in JavaScript'

const folder = await installed(join(ROOT, 'test/fixtures/clients')).catch((error: unknown) => {
  if (THOROUGH) throw error
  console.log(`SKIPPED: the generator of clients cannot be installed: ${reasonOf(error)}`)
  return undefined
})
const MISSING = folder === undefined && 'SKIPPED: the generator of clients cannot be installed'

type Plant = { readonly id: bigint; readonly name: string; readonly tag?: string }

/** Under which id a plant was stored: only another plant with that id is refused. */
async function storedAt(port: number): Promise<bigint | undefined> {
  for (const id of [ROUNDED, EXACT])
    if ((await post(port, `{"id":${id},"name":"another"}`)).status === 409) return id
  return undefined
}

for (const name of ['textOf', 'rawTextOf']) {
  test(`clients: the text of ${name} has the id`, async (t) => {
    const file = join(await temporaryDirectory(), 'large-ids.mjs')
    await writeFile(file, codeOf(CLIENTS, HEADING, 'large-ids.mjs'))
    // The document's functions have this type.
    const { [name]: textOf } = (await import(pathToFileURL(file).href)) as Readonly<
      Record<string, (plant: Plant) => string>
    >
    const { port } = await startService(t)
    const plant = { id: EXACT, name: '"Oak"\u0000', tag: 'old' }
    // Node 20 does not have it, as the document says.
    if (name === 'rawTextOf' && !('rawJSON' in JSON))
      return assert.throws(() => textOf?.(plant), /rawJSON is not a function/)
    const { status, text } = await post(port, textOf?.(plant) ?? assert.fail(name))
    assert.deepEqual([status, JSON.parse(text)], [200, { name: plant.name, tag: 'old' }])
    assert.equal(await storedAt(port), EXACT)
  })
}

test('clients: the pages that Link names have all plants, each of them once', async (t) => {
  const folder = await temporaryDirectory()
  const file = join(folder, 'pages.mjs')
  await writeFile(file, codeOf(CLIENTS, 'All plants, a page at a time', 'pages.mjs'))
  await writeFile(join(folder, 'send.mjs'), codeOf(CLIENTS, 'If a request fails', 'send.mjs'))
  // The document's function has this type.
  const { plantsAt } = (await import(pathToFileURL(file).href)) as {
    readonly plantsAt: (url: string, token: string) => AsyncIterable<Plant>
  }
  const { port } = await startService(t)
  const url = `http://127.0.0.1:${port}`
  const names = Array.from({ length: 250 }, (_, id) => `plant ${id}`)
  for (const [id, name] of names.entries()) await post(port, { id, name })
  const listed: string[] = []
  for await (const { name } of plantsAt(url, token('alice'))) listed.push(name)
  assert.deepEqual(listed, names)
  await assert.rejects(plantsAt(url, 'no-token')[Symbol.asyncIterator]().next(), /^Error: 401: /)
})

/** Answers request after request with the next of these statuses; at 0 it closes the connection. */
function server(t: TestContext, statuses: number[]): Promise<string> {
  return serving(t, (req, res) => {
    const status = statuses.shift() ?? assert.fail('one request too many')
    if (status === 0) req.socket.destroy()
    else res.writeHead(status, { 'Retry-After': '0' }).end('{}')
  })
}

test('clients: a request is tried again where that may help, and no other', async (t) => {
  const file = join(await temporaryDirectory(), 'send.mjs')
  await writeFile(file, codeOf(CLIENTS, 'If a request fails', 'send.mjs'))
  // The document's function has this type.
  const { send } = (await import(pathToFileURL(file).href)) as {
    readonly send: (url: string, options: object, tries?: number) => Promise<Response>
  }
  const fatal = [400, 401, 403, 404, 405, 409, 413, 415, 417, 431, 501, 507]
  for (const [statuses, expected] of [
    [[0, 408, 429, 500, 200], 200],
    [[503, 503, 503, 503, 503], 503],
    ...fatal.map((status) => [[status], status] as const),
  ] as const) {
    const left = [...statuses]
    const { status } = await send(await server(t, left), { method: 'POST', body: '{}' })
    assert.deepEqual([status, left], [expected, []])
  }
  await assert.rejects(send(await server(t, [0]), {}, 1), /fetch failed/)
})

/** What a program does with the client of the document. */
const PROGRAM = `
import { client, create } from './client.ts'
const Authorization = 'Bearer ' + process.env['TOKEN']
const baseUrl = process.env['URL'] ?? ''
const options = { baseUrl, headers: { Authorization } }
const id: bigint = ${EXACT}n
// Its client is for another port.
export const created = () => create('a token', { id, name: 'Oak' })
const { data, error } = await client.POST('/plants', { ...options, body: { id, name: 'Oak' } })
const list = await client.GET('/plants', options)
// @ts-expect-error -- a number would be rounded
export const wrong = () => client.POST('/plants', { ...options, body: { id: 1, name: 'Oak' } })
console.log(JSON.stringify([data, error, list.data]))`

test('clients: the generated client takes a bigint and sends it', { skip: MISSING }, async (t) => {
  const cwd = await project(t)
  const { port } = await startService(t)
  const env = { PATH: process.env['PATH'], URL: `http://127.0.0.1:${port}`, TOKEN: token('alice') }
  const run = (program: string, ...args: readonly string[]) =>
    promisify(execFile)(program, args, { cwd, env })
  await run(process.execPath, 'types.mjs')
  const checks = ['--strict', '--skipLibCheck', '--module', 'nodenext', '--target', 'es2023']
  const output = ['--outDir', 'out', '--rewriteRelativeImportExtensions', '--types', 'node']
  const compiler = join(ROOT, 'node_modules/.bin/tsc')
  await run(compiler, '--singleThreaded', ...checks, ...output, 'program.ts')
  const { stdout } = await run(process.execPath, 'out/program.js')
  assert.deepEqual(JSON.parse(stdout), [{ name: 'Oak' }, null, [{ name: 'Oak' }]])
  assert.equal(await storedAt(port), EXACT)
})

/** A folder with the files of the document and the generator. */
async function project(t: TestContext): Promise<string> {
  const cwd = await mkdtemp(join(folder ?? '', 'project-'))
  t.after(() => rm(cwd, { recursive: true, force: true }))
  await cp(join(ROOT, 'src/api/openapi.json'), join(cwd, 'openapi.json'))
  for (const name of ['types.mjs', 'client.ts'])
    await writeFile(join(cwd, name), codeOf(CLIENTS, HEADING, name))
  await writeFile(join(cwd, 'program.ts'), PROGRAM)
  await mkdir(join(cwd, 'node_modules/@types'), { recursive: true })
  await symlink(join(ROOT, 'node_modules/@types/node'), join(cwd, 'node_modules/@types/node'))
  return cwd
}
