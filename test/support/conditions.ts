import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { TestContext } from 'node:test'
import type { Condition } from '../../dist/errors.js'
import { Overloaded } from '../../dist/limits/budget.js'
import { SqljsStore } from '../../dist/store/sqljs/sqljs-store.js'
import { startBare } from './bare.ts'
import { askHttp2, http2Server } from './http2.ts'
import { answerUnderLoad } from './overload.ts'
import { startService } from './service.ts'
import { listening } from './serving.ts'
import { stopClock } from './time.ts'
import { token } from './tokens.ts'
import {
  answersToHalf,
  firstAnswer,
  head,
  type HeadOptions,
  JSON_TYPE,
  postBytes,
  Wire,
  type WireAnswer,
} from './wire.ts'

/** As the description names them. */
export const METHODS = ['get', 'head', 'post', 'options'] as const
export type Method = (typeof METHODS)[number]

/** Headers that only some answers have. */
export const SPECIAL = [
  'www-authenticate',
  'allow',
  'retry-after',
  'accept-encoding',
  'link',
] as const

const REALM = 'Bearer realm="plants"'
const BAD_TOKEN = { 'www-authenticate': `${REALM}, error="invalid_token"` }
const WHOLE_SECONDS = { 'retry-after': /^[1-9][0-9]*$/ }
const PLANT = { id: 1, name: 'a' }

/** How to cause a failure, and what its response is. */
interface Case {
  /** The answer to this method: the failure, if the method can meet it. */
  readonly ask: (method: Method) => Promise<WireAnswer>
  /** As the description names it; /plants by default. */
  readonly path?: string
  /** A method that meets it; GET by default. */
  readonly method?: Method
  /** The values of SPECIAL headers, exact or by pattern; it has no others. */
  readonly headers?: Readonly<Record<string, string | RegExp>>
  /** True if the connection closes after the response. */
  readonly closes?: boolean
}

type Cases = Readonly<Record<Condition, Case>>

export interface SendOptions extends HeadOptions {
  readonly target?: string
  readonly body?: unknown
}

/** A token for everything. */
export function tokenOf(owner: string): string {
  return token(owner, { scope: 'plants:read plants:write' })
}

/** A request of any method; a POST has a body. */
export function send(port: number, method: string, options: SendOptions = {}): Promise<WireAnswer> {
  return firstAnswer(port, bytesOf(method, options), headsOf(method))
}

/** The indexes of answers without a body, if there is one answer. */
function headsOf(method: string): readonly number[] {
  return method === 'head' ? [0] : []
}

function bytesOf(
  method: string,
  { target = '/plants', body = PLANT, ...options }: SendOptions,
): string {
  return method === 'post'
    ? postBytes(body, { target, ...options })
    : head(method.toUpperCase(), target, options)
}

interface FailureCases {
  readonly adminPort: number
  readonly cases: Cases
  /** Those that the service of this admin port answers, each once. */
  readonly own: readonly Condition[]
}

/** How to cause each failure of the catalogue; most of them at one service. */
export async function failureCases(t: TestContext): Promise<FailureCases> {
  const { port, adminPort } = await startService(t, {
    readScope: 'plants:read',
    writeScope: 'plants:write',
    maxBodyBytes: 1000,
  })
  const ofRequest = ofRequests(port)
  // They are its own keys.
  const own = [...(Object.keys(ofRequest) as Condition[]), 'idTaken', 'internal'] as const
  return { adminPort, cases: { ...ofRequest, ...(await ofServices(t, port)) }, own }
}

/** Failures that a request alone can cause. */
function ofRequests(port: number) {
  const good = tokenOf('alice')
  const meet = (options: SendOptions) => (method: Method) =>
    send(port, method, { token: good, ...options })
  /** These headers and this body, with any method. */
  const typed =
    (body: string, ...lines: readonly string[]) =>
    (method: Method) => {
      const options = { token: good, lines: [...lines, `Content-Length: ${body.length}`] }
      const bytes = head(method.toUpperCase(), '/plants', options) + body
      return firstAnswer(port, bytes, headsOf(method))
    }
  return {
    malformedRequest: { ask: meet({ lines: ['no colon'] }), closes: true },
    hostInvalid: { ask: meet({ host: undefined }) },
    authorizationMalformed: {
      ask: meet({ token: 'a,b' }),
      headers: { 'www-authenticate': `${REALM}, error="invalid_request"` },
    },
    contentTypeRepeated: { ask: typed('{}', JSON_TYPE, JSON_TYPE), method: 'post' },
    bodyNotUtf8: { ask: typed('\xff', JSON_TYPE), method: 'post' },
    bodyNotJson: { ask: meet({ body: [] }), method: 'post' },
    memberRepeated: { ask: meet({ body: '{"id":1,"name":"a","name":"a"}' }), method: 'post' },
    nameInvalid: { ask: meet({ body: { id: 1 } }), method: 'post' },
    idInvalid: { ask: meet({ body: { name: 'a' } }), method: 'post' },
    tagInvalid: { ask: meet({ body: { ...PLANT, tag: null } }), method: 'post' },
    limitInvalid: { ask: meet({ target: '/plants?limit=-1' }) },
    afterInvalid: { ask: meet({ target: '/plants?after=' }) },
    tokenMissing: { ask: meet({ token: undefined }), headers: { 'www-authenticate': REALM } },
    tokenInvalid: { ask: meet({ token: 'abc' }), headers: BAD_TOKEN },
    tokenExpired: { ask: meet({ token: token('alice', { exp: 1_000_000 }) }), headers: BAD_TOKEN },
    tokenUnacceptable: {
      ask: meet({ token: token('alice', { aud: 'others' }) }),
      headers: BAD_TOKEN,
    },
    scopeMissing: {
      ask: meet({ token: token('alice', { scope: 'others' }) }),
      headers: { 'www-authenticate': `${REALM}, error="insufficient_scope", scope="plants:read"` },
    },
    pathUnknown: { ask: meet({ target: '/trees' }) },
    methodNotAllowed: {
      ask: () => send(port, 'delete', { token: good }),
      headers: { allow: 'GET, HEAD, POST, OPTIONS' },
    },
    methodUnknown: { ask: () => send(port, 'trace', { token: good }) },
    bodyTooLarge: {
      ask: meet({ body: { id: 1, name: 'x'.repeat(1000) } }),
      method: 'post',
      closes: true,
    },
    mediaTypeUnsupported: { ask: typed('{}', 'Content-Type: text/plain'), method: 'post' },
    contentEncodingUnsupported: {
      ask: typed('{}', JSON_TYPE, 'Content-Encoding: gzip'),
      method: 'post',
      headers: { 'accept-encoding': 'identity' },
    },
    expectationFailed: { ask: meet({ lines: ['Expect: a-miracle'] }) },
    headersTooLarge: { ask: meet({ lines: [`X: ${'x'.repeat(20_000)}`] }), closes: true },
  } as const satisfies Partial<Cases>
}

/** Failures that need a certain state of a service, or a service with certain settings. */
async function ofServices(t: TestContext, port: number) {
  const bare = await startBare(t, { timeouts: { headersMs: 100, requestMs: 200 } })
  const busy = await startBare(t, {
    authenticate: () => Promise.reject(new Overloaded('too many tokens wait')),
  })
  const limited = await startService(t, { rateLimit: 1 })
  // Nothing listens on port 1.
  const keyless = await startService(t, { jwksUrl: 'http://127.0.0.1:1/keys' })
  const overQuota = await startService(t, { maxOwnerBytes: 1 })
  const full = await startService(t, { maxDataBytes: 65_536 })
  const closed = await startClosed(t)
  const mounted = await http2Server(t, bare.adapter.handler)
  return {
    requestTimeout: {
      async ask(method) {
        const half = bytesOf(method, {}).slice(0, -3)
        const [answer = assert.fail()] = await answersToHalf(
          bare.port,
          (wire) => void wire.write(half),
          (wire) => wire.answers(1, headsOf(method)),
        )
        return answer
      },
      closes: true,
    },
    idTaken: {
      async ask(method) {
        const other = tokenOf('other')
        await send(port, method, { token: other })
        return send(port, method, { token: other, body: { ...PLANT, name: 'b' } })
      },
      method: 'post',
    },
    rateLimited: {
      async ask(method) {
        const bytes = bytesOf(method, { token: token(method) })
        const wire = await Wire.to(limited.port)
        // Both in one second.
        const clock = stopClock(t)
        const answers = await wire.write(bytes + bytes).answers(2, method === 'head' ? [0, 1] : [])
        clock.restore()
        return answers[1] ?? assert.fail()
      },
      headers: WHOLE_SECONDS,
    },
    internal: {
      async ask(method) {
        const called = method === 'post' ? 'create' : 'list'
        const mocked = t.mock.method(SqljsStore.prototype, called, () => {
          throw new Error('a secret of the inside')
        })
        // An owner whose list is not cached.
        const answer = await send(port, method, { token: tokenOf('new owner') })
        mocked.mock.restore()
        return answer
      },
    },
    keysUnavailable: {
      ask: (method) =>
        send(keyless.port, method, { token: token('alice', {}, { alg: 'RS256', kid: 'a' }) }),
      headers: WHOLE_SECONDS,
    },
    versionUnsupported: { ask: (method) => askHttp2(mounted, method.toUpperCase()) },
    storageUnavailable: { ask: (method) => send(closed, method), headers: WHOLE_SECONDS },
    overloaded: {
      async ask(method) {
        const underLoad = await answerUnderLoad(t, (loaded) => send(loaded, method))
        return underLoad.status < 400 ? send(busy.port, method) : underLoad
      },
      method: 'post',
      headers: WHOLE_SECONDS,
    },
    overQuota: {
      ask: (method) => send(overQuota.port, method),
      method: 'post',
    },
    storageFull: {
      async ask(method) {
        for (let id = 0; ; id++) {
          const answer = await send(full.port, method, { body: { id, name: 'x'.repeat(10_000) } })
          if (answer.status >= 400 || id === 7) return answer
        }
      },
      method: 'post',
    },
  } as const satisfies Partial<Cases>
}

/** The port of a program that closed the embedded service and goes on serving. */
async function startClosed(t: TestContext): Promise<number> {
  const { service, close } = await startService(t)
  await close()
  return listening(t, createServer(service.handler))
}
