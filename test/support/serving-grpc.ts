import { once } from 'node:events'
import { createServer, type Http2Session, type ServerHttp2Stream } from 'node:http2'
import type { AddressInfo } from 'node:net'
import type { TestContext } from 'node:test'
import { Channels, EtcdRefusal } from '../../dist/store/etcd/grpc.js'
import { encode, Message } from '../../dist/store/etcd/protobuf.js'
import type { EtcdConfig } from '../../dist/store/etcd/store.js'
import { PATIENCE_MS } from './time.ts'

/** A field of a message. A text has one character for each byte. */
export type Field = readonly [number: number, value: number | string | readonly Field[]]

export function written(fields: readonly Field[]): Buffer {
  const bytesOf = ([number, value]: Field): Buffer => {
    const isMessage = typeof value === 'object'
    return encode({ [number]: isMessage ? written(value).toString('latin1') : value })
  }
  return Buffer.concat(fields.map(bytesOf))
}

/** A call as a member of etcd receives it. */
export interface GrpcCall {
  /** Method, path and media type. */
  readonly target: string
  readonly path: string
  /** Without its prefix. */
  readonly message: Buffer
  readonly token: string | undefined
  readonly session: Http2Session
  readonly stream: ServerHttp2Stream
}

/** A refusal of etcd: code and message. */
export interface Refusal {
  readonly code: number
  readonly message: string
}

/**
 * A message; all bytes of a body; a refusal; a status of HTTP with a text; no answer; one that is
 * cut off.
 */
export type GrpcReply =
  | readonly Field[]
  | Buffer
  | { readonly body: Buffer }
  | Refusal
  | readonly [status: number, text: string]
  | 'hang'
  | 'cut'

/** True for a call that reads plants: a range, or a transaction that compares nothing. */
export function isRead({ path, message }: GrpcCall): boolean {
  const compares = path.endsWith('/Txn') && new Message(message).messages(1).length > 0
  return !compares && path.includes('/etcdserverpb.KV/')
}

/** What a transaction answers that read these pages. */
export function readAnswer(...pages: readonly (readonly Field[])[]): readonly Field[] {
  return [HEADER, [2, 1], ...pages.map((page): Field => [3, [[1, [HEADER, ...page]]]])]
}

const HEADER: Field = [1, [[1, 1], [2, 2], [3, 7], [4, 3]]]
const PREFIX_BYTES = 5
/** Half of a message that would be longer. */
const CUT = Buffer.from([0, 0, 0, 1, 0, 1, 2, 3])

function isRefusal(reply: Exclude<GrpcReply, string>): reply is Refusal {
  return 'code' in reply
}

/** A message as gRPC sends it. */
function framed(message: Buffer): Buffer {
  const prefix = Buffer.alloc(PREFIX_BYTES)
  prefix.writeUInt32BE(message.length, 1)
  return Buffer.concat([prefix, message])
}

export function isText(reply: GrpcReply): reply is readonly [number, string] {
  return Array.isArray(reply) && typeof reply[0] === 'number'
}

function bodyOf(reply: readonly Field[] | Buffer | { readonly body: Buffer }): Buffer {
  if ('body' in reply) return reply.body
  return framed(Buffer.isBuffer(reply) ? reply : written(reply))
}

function send(stream: ServerHttp2Stream, reply: GrpcReply): void {
  if (reply === 'hang' || stream.headersSent || stream.destroyed) return
  const grpc = { 'content-type': 'application/grpc' }
  if (reply === 'cut') {
    stream.respond(grpc)
    stream.write(CUT, () => stream.session?.destroy())
  } else if (isText(reply)) {
    const [status, text] = reply
    stream.respond({ ':status': status })
    stream.end(text)
  } else if (isRefusal(reply)) {
    const trailers = { 'grpc-status': reply.code, 'grpc-message': reply.message }
    stream.respond({ ...grpc, ...trailers }, { endStream: true })
  } else {
    stream.respond(grpc, { waitForTrailers: true })
    stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }))
    stream.end(bodyOf(reply))
  }
}

/** Starts a server that answers as a member of etcd would. Returns its endpoint. */
export async function servingGrpc(
  t: TestContext,
  answer: (call: GrpcCall) => GrpcReply | Promise<GrpcReply>,
): Promise<string> {
  const sessions = new Set<Http2Session>()
  const server = createServer().listen(0, '127.0.0.1')
  server.on('session', (session) => {
    sessions.add(session)
    session.on('error', () => {})
    session.on('close', () => sessions.delete(session))
  })
  server.on('stream', (stream, headers) => {
    const chunks: Buffer[] = []
    stream.on('error', () => {})
    stream.on('data', (chunk: Buffer) => chunks.push(chunk))
    stream.on('end', () => {
      const { session } = stream
      if (!session) return
      const message = Buffer.concat(chunks).subarray(PREFIX_BYTES)
      const path = String(headers[':path'])
      const target = `${headers[':method']} ${path} ${headers['content-type']}`
      const token = headers['token']
      const call = { target, path, message, session, stream, token: token?.toString() }
      void Promise.resolve(answer(call)).then((reply) => send(stream, reply))
    })
  })
  await once(server, 'listening')
  t.after(() => {
    for (const session of sessions) session.destroy()
    server.close()
  })
  // It listens on TCP.
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}

/** Starts a server that passes calls on to a member, each after this promise. */
export async function passingGrpc(
  t: TestContext,
  { endpoints: [member = ''], tls }: Pick<EtcdConfig, 'endpoints' | 'tls'>,
  before: (call: GrpcCall) => Promise<void> | undefined,
): Promise<string> {
  const channels = new Channels(tls)
  t.after(() => channels.close())
  const limits = { timeoutMs: PATIENCE_MS, maxBytes: Infinity }
  return servingGrpc(t, async (call) => {
    await before(call)
    const { path, message, token = '' } = call
    try {
      return await channels.ask(member, { path, message, token, ...limits })
    } catch (error) {
      // Which code a refusal has makes no difference.
      if (error instanceof EtcdRefusal) return { code: 8, message: error.message }
      return 'cut'
    }
  })
}
