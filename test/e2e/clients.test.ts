import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { cp, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import type { Row } from '../../dist/store/sqljs/disk/journal-format.js'
import { codeOf, read, sectionOf } from '../support/documents.ts'
import { post } from '../support/http.ts'
import { installed } from '../support/installed.ts'
import { ROOT } from '../support/release.ts'
import { LONG, skipWithout, THOROUGH } from '../support/scale.ts'
import { DEFAULTS, startService, temporaryDirectory } from '../support/service.ts'
import { serving } from '../support/serving.ts'
import { writeStore } from '../support/store-files.ts'
import { directoryOf, filesOf, openStore } from '../store/sqljs/fixtures.ts'
import { token } from '../support/tokens.ts'

/** What doubles hold, and the first integer that they do not. */
const [ROUNDED, EXACT] = [2n ** 53n, 2n ** 53n + 1n]
const CLIENTS = 'src/clients.md'
const HEADING = 'Large ids in JavaScript'

/** The generator of clients. */
const folder = THOROUGH ? await installed(join(ROOT, 'test/fixtures/clients')) : ''

type Plant = { readonly id: bigint; readonly name: string; readonly tag?: string }

type TextOf = Readonly<Record<string, (plant: Plant) => string>>

/** The module of the document that is this file. */
async function imported<T>(heading: string, name: string, folder?: string): Promise<T> {
  const file = join(folder ?? (await temporaryDirectory()), name)
  await writeFile(file, codeOf(CLIENTS, heading, name))
  // The document's functions have this type.
  return (await import(pathToFileURL(file).href)) as T
}

/** Under which id a plant was stored: only another plant with that id is refused. */
async function storedAt(port: number): Promise<bigint | undefined> {
  for (const id of [ROUNDED, EXACT])
    if ((await post(port, `{"id":${id},"name":"another"}`)).status === 409) return id
  return undefined
}

for (const name of ['textOf', 'rawTextOf']) {
  test(`clients: the text of ${name} has the id`, async (t) => {
    const { [name]: textOf } = await imported<TextOf>(HEADING, 'large-ids.mjs')
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

/** The one block for a shell in a part of a document. */
function shellIn(section: string): string {
  const [block, ...others] = section.matchAll(/^```sh\n([^]*?)^```/gm)
  assert.equal(others.length, 0, 'each block is run')
  return block?.[1]?.trimEnd() ?? assert.fail('no block for a shell')
}

const NAMES = Array.from({ length: 250 }, (_, id) => (id === 7 ? 'Monstera' : `n${id}`))
const OTHERS = NAMES.filter((name) => name !== 'Monstera')
const rows = NAMES.map((name, id): Row => ['alice', String(id), name]).toSpliced(7, 1)
const prepared = await temporaryDirectory()
await writeStore(prepared, rows)
// A start over an export makes a snapshot of it, in a thread: only this one has to.
await (await openStore(prepared)).close()
const files = await filesOf(prepared)

/** What the programs at the beginning of the document are given. */
async function withPlants(t: TestContext) {
  const options = { data: await directoryOf(files), corsOrigins: ['https://app.example'] }
  const { port } = await startService(t, options)
  return { url: `http://127.0.0.1:${port}`, bearer: token('alice') }
}

test('clients: the page creates a plant and lists all', async (t) => {
  type Create = (url: string, token: string) => Promise<readonly Plant[]>
  const { createAndList } = await imported<{ createAndList: Create }>('Clients', 'page.mjs')
  const { url, bearer } = await withPlants(t)
  const listed = await createAndList(`${url}/plants`, bearer)
  const found = listed.map(({ name }) => name)
  assert.deepEqual(found, NAMES)
  await assert.rejects(createAndList(`${url}/plants`, 'a.b.c'), /^Error: The token is no whole JWT/)
})

const NO_PYTHON = skipWithout('python3 is missing', 'python3', '--version')

test('clients: the Python program does too', { skip: NO_PYTHON }, async (t) => {
  const file = join(await temporaryDirectory(), 'plants.py')
  await writeFile(file, codeOf(CLIENTS, 'Clients', 'plants.py'))
  const { url, bearer } = await withPlants(t)
  const { stdout } = await promisify(execFile)('python3', [file, `${url}/plants`, bearer])
  assert.deepEqual(stdout.trimEnd().split('\n'), NAMES)
})

test('clients: the commands of a shell create a plant and list the first page', async (t) => {
  const { url, bearer } = await withPlants(t)
  const env = { PATH: process.env['PATH'], URL: url, TOKEN: bearer }
  const command = shellIn(sectionOf(CLIENTS, 'Clients')).replaceAll('curl ', 'curl -sS ')
  const { stdout } = await promisify(execFile)('sh', ['-ec', command], { env })
  const page = NAMES.slice(0, 100).map((name) => ({ name }))
  assert.match(stdout, /^{"name":"Monstera"}HTTP\/1.1 200 OK\r$/m)
  assert.match(stdout, /^Link: <plants\?limit=100&after=\S+>; rel="next"\r$/m)
  assert.deepEqual(JSON.parse(stdout.slice(stdout.lastIndexOf('\r\n') + 2)), page)
})

test('clients: the pages that Link names have all plants, each of them once', async (t) => {
  const folder = await temporaryDirectory()
  await writeFile(join(folder, 'send.mjs'), codeOf(CLIENTS, 'If a request fails', 'send.mjs'))
  type PlantsAt = (url: string, token: string) => AsyncIterable<Plant>
  const heading = 'All plants, a page at a time'
  const { plantsAt } = await imported<{ plantsAt: PlantsAt }>(heading, 'pages.mjs', folder)
  const { url, bearer } = await withPlants(t)
  const listed: string[] = []
  for await (const { name } of plantsAt(`${url}/plants`, bearer)) listed.push(name)
  assert.deepEqual(listed, OTHERS)
  const refused = plantsAt(`${url}/plants`, 'no-token')[Symbol.asyncIterator]()
  await assert.rejects(refused.next(), /^Error: 401: /)
})

const [CLOSED, RESET] = [0, 1]

/** Answers request after request with the next of these statuses, or ends the connection. */
function server(t: TestContext, statuses: number[]): Promise<string> {
  return serving(t, (req, res) => {
    const status = statuses.shift() ?? assert.fail('one request too many')
    if (status === CLOSED) req.socket.destroy()
    else if (status === RESET) req.socket.resetAndDestroy()
    else res.writeHead(status, { 'Retry-After': '0' }).end('{}')
  })
}

test('clients: a request is tried again where that may help, and no other', async (t) => {
  type Send = (url: string, options: object, tries?: number) => Promise<Response>
  const { send } = await imported<{ send: Send }>('If a request fails', 'send.mjs')
  const fatal = [400, 401, 403, 404, 405, 409, 413, 415, 417, 431, 501, 507]
  for (const [statuses, expected] of [
    [[CLOSED, 408, 429, 500, 200], 200],
    [[RESET, 200], 200],
    [[503, 503, 503, 503, 503], 503],
    ...fatal.map((status) => [[status], status] as const),
  ] as const) {
    const left = [...statuses]
    const { status } = await send(await server(t, left), { method: 'POST', body: '{}' })
    assert.deepEqual([status, left], [expected, []])
  }
  await assert.rejects(send(await server(t, [CLOSED]), {}, 1), /fetch failed/)
})

test('clients: the command for a shell repeats after a reset, and no 4xx', async (t) => {
  const command = shellIn(sectionOf(CLIENTS, 'If a request fails'))
  for (const [statuses, expected] of [
    [[RESET, 200], 200],
    [[CLOSED, 200], 200],
    [[503, 200], 200],
    [[409], 409],
    [[400], 400],
  ] as const) {
    const left = [...statuses]
    const env = { PATH: process.env['PATH'], URL: await server(t, left), TOKEN: token('alice') }
    const script = `${command} -sS -w ' %{http_code}'`
    const { stdout } = await promisify(execFile)('sh', ['-c', script], { env })
    assert.deepEqual([stdout.split(' ').at(-1), left], [String(expected), []])
  }
})

test('clients: the rate that an upload needs is that of the limits', () => {
  const [, rate] = /A body of 1 MiB needs (\d+) kB\/s/.exec(read(CLIENTS)) ?? []
  const [, seconds] = /requestTimeout: (\d+)_000 /.exec(read('src/service.ts')) ?? []
  assert.ok(read(CLIENTS).includes(`must arrive within ${seconds} s`))
  assert.equal(DEFAULTS.maxBodyBytes, 2 ** 20)
  assert.equal(Number(rate), Math.round(2 ** 20 / Number(seconds) / 1000))
})

const NO_JAVA = 'java is missing (Debian: apt-get install openjdk-17-jdk-headless)'
const JAVA = { skip: LONG || skipWithout(NO_JAVA, 'java', '-version') }

test('clients: the Java program gets all pages', JAVA, async (t) => {
  const { url, bearer } = await withPlants(t)
  const file = join(await temporaryDirectory(), 'Pages.java')
  await writeFile(file, codeOf(CLIENTS, 'All plants, a page at a time', 'Pages.java'))
  const args = [file, `${url}/plants?limit=100`, bearer]
  const { stdout } = await promisify(execFile)('java', args)
  // Each line is an array of plants.
  const pages = stdout.trim().split('\n')
  const plants = pages.flatMap((page) => JSON.parse(page) as readonly Plant[])
  const found = plants.map(({ name }) => name)
  assert.deepEqual(found, OTHERS)
  assert.equal(pages.length, 3)
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

test('clients: the generated client takes a bigint and sends it', { skip: LONG }, async (t) => {
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
  const cwd = await mkdtemp(join(folder, 'project-'))
  t.after(() => rm(cwd, { recursive: true, force: true }))
  await cp(join(ROOT, 'src/api/openapi.json'), join(cwd, 'openapi.json'))
  for (const name of ['types.mjs', 'client.ts'])
    await writeFile(join(cwd, name), codeOf(CLIENTS, HEADING, name))
  await writeFile(join(cwd, 'program.ts'), PROGRAM)
  await mkdir(join(cwd, 'node_modules/@types'), { recursive: true })
  await symlink(join(ROOT, 'node_modules/@types/node'), join(cwd, 'node_modules/@types/node'))
  return cwd
}
